package audit

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Denials counts refusals before authentication, which have no decision of
// their own, and writes the counts to the log as denial_summary records. A
// flood of them costs the log a bounded number of bytes, and no refusal goes
// uncounted.
//
// Counts are kept by source prefix (IPv4 /24, IPv6 /56) and code. Once the
// table is full, further prefixes count together under [OtherPrefixes], so
// that totals by code stay exact.
type Denials struct {
	log  Appender
	size int

	flushing sync.Mutex // one flush at a time; guards owed
	owed     []*Record  // taken from the table, not yet known to be in the log

	mu     sync.Mutex // guards counts and others
	counts map[denialKey]denialCount
	others map[string]denialCount // by code
}

// OtherPrefixes stands for the prefixes that the table had no room for.
const OtherPrefixes = "other"

// denialsPerRecord keeps a summary well below the size limit of a record.
const denialsPerRecord = 256

type denialKey struct {
	prefix netip.Prefix
	tenant string // of a caller that is known, and has spent its quota
	code   string
}

type denialCount struct {
	n           uint64
	first, last int64 // µs since the Unix epoch
}

// DefaultDenials is the size of a table for which the caller names none.
const DefaultDenials = 4096

// NewDenials returns a table of size prefixes and codes; 0 means
// [DefaultDenials].
func NewDenials(log Appender, size int) *Denials {
	if size <= 0 {
		size = DefaultDenials
	}
	return &Denials{
		log: log, size: size,
		counts: make(map[denialKey]denialCount, size),
		others: make(map[string]denialCount),
	}
}

// Count counts one refusal. The code must be one of a fixed set, never text
// of the caller's. It takes constant time and, for a source and code seen
// since the last flush, allocates nothing.
func (d *Denials) Count(source netip.Addr, code string) {
	d.count(denialKey{prefix: SourcePrefix(source), code: code})
}

// CountTenant counts one refusal of a caller whose tenant may not have it
// recorded in full.
func (d *Denials) CountTenant(tenant, code string) {
	d.count(denialKey{tenant: tenant, code: code})
}

func (d *Denials) count(key denialKey) {
	now := time.Now().UnixMicro()
	d.mu.Lock()
	defer d.mu.Unlock()
	if c, known := d.counts[key]; known || len(d.counts) < d.size {
		d.counts[key] = c.one(now)
	} else {
		d.others[key.code] = d.others[key.code].one(now)
	}
}

// one counts one more.
func (c denialCount) one(now int64) denialCount {
	if c.n == 0 {
		c.first = now
	}
	return denialCount{c.n + 1, c.first, max(c.last, now)}
}

// SourcePrefix is what an address counts under: IPv4 /24, IPv6 /56. It drops what
// could name a person, and what one attacker could vary at will.
func SourcePrefix(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := 56
	if a.Is4() {
		bits = 24
	}
	p, err := a.Prefix(bits)
	if err != nil {
		return netip.Prefix{} // the zero Addr: a source without an IP address
	}
	return p
}

// Run flushes at each interval until ctx is done, then once more. It returns
// the error of the last flush.
func (d *Denials) Run(ctx context.Context, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	flush := func() error {
		// To be cut short would leave it open whether a summary was written.
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return d.Flush(bounded)
	}
	for {
		select {
		case <-ctx.Done():
			return flush()
		case <-tick.C:
			// The counts are kept, and a log that takes no records says so.
			_ = flush()
		}
	}
}

// Flush writes what has been counted since the last flush. What the log did
// not take is kept, and is written first the next time under the same record
// id: if the log had it after all, it holds that summary twice, and readers
// count an id once.
func (d *Denials) Flush(ctx context.Context) error {
	d.flushing.Lock()
	defer d.flushing.Unlock()
	if len(d.owed) == 0 {
		d.owed = d.take()
	}
	for len(d.owed) > 0 {
		if _, err := d.log.Append(ctx, d.owed[0]); err != nil {
			return fmt.Errorf("denial summary: %w", err)
		}
		d.owed = d.owed[1:]
	}
	return nil
}

// take empties the table into records. The table's buckets are kept, so that
// counting goes on without growing it again.
func (d *Denials) take() []*Record {
	d.mu.Lock()
	defer d.mu.Unlock()
	// Those of tenants have records of their own: a tenant that has spent its
	// quota is no attack, and detections tell records apart, not what is in them.
	var networks, tenants []DenialCount
	for key, c := range d.counts {
		of := &networks
		if key.tenant != "" {
			of = &tenants
		}
		*of = append(*of, c.export(key.source(), key.code))
	}
	for code, c := range d.others {
		networks = append(networks, c.export(OtherPrefixes, code))
	}
	clear(d.counts)
	clear(d.others)
	var records []*Record
	for _, all := range [][]DenialCount{networks, tenants} {
		for chunk := range slices.Chunk(all, denialsPerRecord) {
			records = append(records, &Record{Kind: KindDenialSummary, ID: NewID(), Denials: chunk})
		}
	}
	return records
}

func (c denialCount) export(prefix, code string) DenialCount {
	return DenialCount{Prefix: prefix, Code: code, Count: c.n, First: c.first, Last: c.last}
}

// tenantSource begins the source of refusals that are counted by tenant.
const tenantSource = "tenant:"

// source is what a count is of.
func (k denialKey) source() string {
	if k.tenant != "" {
		return tenantSource + k.tenant
	}
	return prefixText(k.prefix)
}

func prefixText(p netip.Prefix) string {
	if !p.IsValid() {
		return "unknown"
	}
	return p.String()
}
