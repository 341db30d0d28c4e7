package format

// recordEvent is the leaf itself, byte for byte. It has its index and origin
// in its log field.
func recordEvent(e *Event, c cut) ([]byte, error) {
	if c < bare {
		return e.Leaf, nil
	}
	// It stands for a leaf that is longer than a sink takes.
	r := e.Record
	b := num(nil, `{"v":`, r.V)
	b = text(b, `,"kind":`, r.Kind)
	b = text(b, `,"id":`, r.ID)
	b = text(b, `,"log":{"origin":`, r.Log.Origin)
	b = num(b, `,"seq":`, r.Log.Seq)
	b = text(b, `,"boot":`, r.Log.Boot)
	b = num(b, `},"time":{"wall":`, r.Time.Wall)
	b = num(b, `,"mono_ns":`, r.Time.MonoNS)
	b = text(b, `},"truncated":true,"leaf_hash":`, e.Hash.String())
	b = num(b, `,"leaf_bytes":`, len(e.Leaf))
	return append(b, '}'), nil
}

// recordAnchor is an anchor as JSON, its time in µs since the Unix epoch.
func recordAnchor(a *Anchor) ([]byte, error) { return appendAnchor(nil, a), nil }

func appendAnchor(b []byte, a *Anchor) []byte {
	b = text(b, `{"kind":"anchor","origin":`, a.Origin)
	b = text(b, `,"sink":`, a.Sink)
	b = num(b, `,"time":`, a.Time.UnixMicro())
	b = num(b, `,"first":`, a.First)
	b = num(b, `,"next":`, a.Next)
	b = num(b, `,"records":`, a.Records)
	b = text(b, `,"digest":`, a.Digest.String())
	b = optText(b, `,"checkpoint":`, a.Checkpoint)
	return append(b, '}')
}
