package wire

// completionFields are the request fields of the OpenAI completions reference
// and the sampling parameters that vLLM documents for this route.
func completionFields() map[string]field {
	fields := map[string]field{
		"model": (*parser).model, "prompt": (*parser).prompts, "suffix": opaque,
		"stream": (*parser).stream, "stream_options": (*parser).streamOptions,
		"n": (*parser).n, "max_tokens": (*parser).maxTokens,

		"response_format": (*parser).responseFormat, "structured_outputs": structured,
		"guided_json": structured, "guided_regex": structured, "guided_choice": structured,
		"guided_grammar": structured, "guided_decoding_backend": structured,
		"guided_whitespace_pattern": structured,
	}
	for _, name := range samplingFields {
		fields[name] = plain
	}
	return fields
}

// embeddingFields are the request fields of the OpenAI embeddings reference and
// what vLLM documents beside them. There is no stream to ask for.
func embeddingFields() map[string]field {
	fields := map[string]field{"model": (*parser).model, "input": (*parser).prompts}
	for _, name := range []string{
		"encoding_format", "dimensions", "user",
		"truncate_prompt_tokens", "add_special_tokens", "normalize", "embed_dtype", "endianness",
	} {
		fields[name] = plain
	}
	return fields
}

// prompts reads a text or a list of texts.
func (p *parser) prompts(name string) error {
	switch p.dec.PeekKind() {
	case '"', '0', 0:
		return p.prompt(name)
	case '[':
		err := p.array(func(int) error {
			if err := another(&p.entries.prompts, name); err != nil {
				return err
			}
			return p.prompt(name)
		})
		if err == nil && p.entries.prompts == 0 {
			return invalid(name, "at least one text is required")
		}
		return err
	default:
		return invalid(name, "this must be a text or a list of texts")
	}
}

// prompt reads one text. Token ids are refused: detectors read text, and the
// same ids are another text to another model.
func (p *parser) prompt(name string) error {
	if k := p.dec.PeekKind(); k == '0' || k == '[' {
		return unsupported(name, "token ids cannot be inspected; send text")
	}
	_, err := p.text(name, FromMessage)
	return err
}
