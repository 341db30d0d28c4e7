package main

import (
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"log/slog"

	"github.com/google/uuid"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sallyport-ai/sallyport/identity/workload"
	"github.com/sallyport-ai/sallyport/routing/fleet"
)

func fleetConfig(targets []fleet.Target, source *workload.Source, vkey string, logger *slog.Logger) fleet.Config {
	var key [16]byte
	_, _ = rand.Read(key[:]) // never fails: crypto/rand aborts the process instead
	return fleet.Config{
		Targets: targets,
		TLS: func(t fleet.Target) (*tls.Config, error) {
			authorize, err := authorizerOf(t)
			if err != nil {
				return nil, err
			}
			return workload.ClientConfig(source, authorize), nil
		},
		PeerID: func(cs tls.ConnectionState) (string, error) {
			id, err := workload.PeerID(cs)
			return id.String(), err
		},
		IdentityError: workload.IsIdentityError,
		BlockKey:      key, KeyID: uuid.NewString(), LogVKey: vkey, Log: logger,
	}
}

func authorizerOf(t fleet.Target) (workload.Authorizer, error) {
	if t.ID != "" {
		id, err := spiffeid.FromString(t.ID)
		if err != nil {
			return nil, fmt.Errorf("replica %s: %w", t.Address, err)
		}
		return workload.ExactID(id), nil
	}
	patterns := make([]workload.Pattern, len(t.Members))
	for i, m := range t.Members {
		p, err := workload.ParsePattern(m)
		if err != nil {
			return nil, fmt.Errorf("pool %s: %w", t.Pool, err)
		}
		patterns[i] = p
	}
	return workload.AuthorizePatterns(patterns...), nil
}
