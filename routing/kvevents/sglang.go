package kvevents

// SGLang's events have vLLM's tags, and differ in that
//
//   - arrays end with block_size, or with lora_id and medium; for some months
//     of 2026 a salted event had {"cache_salt": ...} where vLLM has lora_name;
//   - since #37482 events are maps, with the key "cache_salt";
//   - integer hashes are signed, with the same 64 bits, and do not cover the
//     salt: blocks of two tenants may have the same hash;
//   - the batch's rank is named attn_dp_rank, or absent.
//
// No form names the LoRA adapter.

// adapter reads vLLM's lora_name or, in its place, SGLang's map.
func (p *pass) adapter() error {
	h, err := p.r.peek()
	if err != nil {
		return err
	}
	if h.kind != kindMap {
		p.ev.Adapter, err = p.name()
		return err
	}
	n, err := p.r.container(kindMap)
	if err != nil {
		return err
	}
	for range n {
		key, err := p.r.bytes()
		if err != nil {
			return err
		}
		f := fieldOther
		if string(key) == "cache_salt" {
			f = fieldSalt
		}
		if err := p.field(f); err != nil {
			return err
		}
	}
	return nil
}
