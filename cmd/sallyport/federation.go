package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/identity/workload"
)

// federationConfig is a foreign trust domain: how its identities are verified,
// and which of them may call. Which may serve or be a gateway, pools and relays
// say, by naming them.
type federationConfig struct {
	TrustDomain    string        `yaml:"trust_domain"`
	BundleEndpoint string        `yaml:"bundle_endpoint"` // empty: the Workload API brings the bundle
	EndpointID     string        `yaml:"endpoint_id"`     // https_spiffe; empty: https_web
	BundleFile     string        `yaml:"bundle_file"`     // by which an endpoint_id is believed the first time
	CAFile         string        `yaml:"ca_file"`         // of https_web; empty: the system's
	Refresh        time.Duration `yaml:"refresh"`
	MaxStale       time.Duration `yaml:"max_stale"`
	Callers        []string      `yaml:"callers"` // patterns of those that may call a gateway; none: nobody
}

func (c *federationConfig) paths() []*string { return []*string{&c.BundleFile, &c.CAFile} }

func (c federationConfig) federated() (workload.Federated, error) {
	f := workload.Federated{
		Endpoint: c.BundleEndpoint, BundleFile: c.BundleFile, CAFile: c.CAFile, Refresh: c.Refresh, MaxStale: c.MaxStale,
	}
	var errs []error
	var err error
	if c.TrustDomain != "" {
		if f.TrustDomain, err = spiffeid.TrustDomainFromString(c.TrustDomain); err != nil {
			errs = append(errs, fmt.Errorf("trust_domain: %w", err))
		}
	}
	if c.EndpointID != "" {
		if f.EndpointID, err = spiffeid.FromString(c.EndpointID); err != nil {
			errs = append(errs, fmt.Errorf("endpoint_id: %w", err))
		}
	}
	for _, of := range []struct {
		field string
		d     time.Duration
	}{{"refresh", c.Refresh}, {"max_stale", c.MaxStale}} {
		if of.d > 0 && of.d < workload.MinRefresh {
			errs = append(errs, fmt.Errorf("%s: want at least %v, got %v", of.field, workload.MinRefresh, of.d))
		}
	}
	if len(errs) > 0 {
		return f, errors.Join(errs...)
	}
	return f, f.Check()
}

// federation reports what is wrong with a list of foreign trust domains.
func (k checker) federation(all []federationConfig) {
	seen := make(map[string]bool)
	for i, c := range all {
		at := fmt.Sprintf("identity.federation[%d]", i)
		f, err := c.federated()
		for _, problem := range each(err) {
			field, what, _ := strings.Cut(problem.Error(), ": ")
			k.f.Problem(at+"."+field, "%s", what)
		}
		if seen[c.TrustDomain] {
			k.f.Problem(at+".trust_domain", "%s stands twice", c.TrustDomain)
		}
		seen[c.TrustDomain] = true
		for _, file := range []struct{ field, path string }{{"bundle_file", c.BundleFile}, {"ca_file", c.CAFile}} {
			if file.path != "" {
				k.file(at+"."+file.field, file.path)
			}
		}
		for j, caller := range c.Callers {
			switch p, err := workload.ParsePattern(caller); {
			case err != nil:
				k.f.Problem(fmt.Sprintf("%s.callers[%d]", at, j), "%v", err)
			case p.TrustDomain() != f.TrustDomain:
				k.f.Problem(fmt.Sprintf("%s.callers[%d]", at, j), "%s is not of %s", caller, c.TrustDomain)
			}
		}
	}
}

// sourceConfig is where a process gets its identity, and whose it believes.
func sourceConfig(socket string, all []federationConfig) (workload.SourceConfig, error) {
	c := workload.SourceConfig{Socket: socket}
	for _, one := range all {
		f, err := one.federated()
		if err != nil {
			return c, fmt.Errorf("identity.federation: %s: %w", one.TrustDomain, err)
		}
		c.Federated = append(c.Federated, f)
	}
	return c, nil
}

// callers admits every identity of our own trust domain, of others those that
// the configuration names. What they may do, registrations and policy say.
func callers(own spiffeid.TrustDomain, all []federationConfig) (workload.Authorizer, error) {
	var patterns []workload.Pattern
	for _, c := range all {
		for _, text := range c.Callers {
			p, err := workload.ParsePattern(text)
			if err != nil {
				return nil, fmt.Errorf("identity.federation: callers: %w", err)
			}
			patterns = append(patterns, p)
		}
	}
	ours, theirs := workload.AuthorizeDomains(own), workload.AuthorizePatterns(patterns...)
	return func(id spiffeid.ID) error {
		if id.MemberOf(own) {
			return ours(id)
		}
		return theirs(id)
	}, nil
}

// membersKnown refuses members of pools whose identity could not be verified.
func membersKnown(pools []poolConfig, source *workload.Source) error {
	var errs []error
	for _, pool := range pools {
		for _, m := range pool.Members {
			p, err := workload.ParsePattern(m)
			if err != nil {
				return fmt.Errorf("pool %s: %w", pool.Name, err)
			}
			if td := p.TrustDomain(); td != source.TrustDomain() && !source.Federated(td) {
				errs = append(errs, fmt.Errorf("pool %s: members %s: %s is neither our trust domain nor under identity.federation", pool.Name, m, td))
			}
		}
	}
	return errors.Join(errs...)
}
