package jinja

// scopes notices the one case in which Jinja's scopes, which it works out
// before rendering, differ from looking names up as one goes: a loop or macro
// that reads a name which the scope around it sets, but has not mentioned
// before, finds it undefined until it is set even if it was passed in.
type scopes []frame

// frame is the template, or what is inside a loop, a macro or a block that
// keeps its names for itself.
type frame struct {
	mentioned map[string]bool // read or set here
	pending   map[string]bool // read in a frame inside before that
}

func (s *scopes) enter() {
	*s = append(*s, frame{mentioned: map[string]bool{}, pending: map[string]bool{}})
}

func (s *scopes) leave() { *s = (*s)[:len(*s)-1] }

func (s scopes) read(name string) {
	for i := len(s) - 1; i >= 0 && !s[i].mentioned[name]; i-- {
		if i == len(s)-1 {
			s[i].mentioned[name] = true
		} else {
			s[i].pending[name] = true
		}
	}
}

type writeKind uint8

const (
	plainWrite writeKind = iota
	lateWrite            // in the template: the name is undefined until here
	oddWrite             // in a frame inside: likewise, and we cannot tell
)

func (s scopes) write(name string) writeKind {
	last := s[len(s)-1]
	was := last.mentioned[name]
	last.mentioned[name] = true
	if was || !last.pending[name] {
		return plainWrite
	}
	if len(s) == 1 {
		return lateWrite
	}
	for _, f := range s[:len(s)-1] {
		if f.mentioned[name] {
			return plainWrite // it has that frame's value until here
		}
	}
	return oddWrite
}

// enterScope is called before what is inside a frame; the returned function
// leaves it.
func (p *parser) enterScope() func() {
	soft, branch := p.soft, p.branch
	p.soft, p.branch = false, 0
	p.scopes.enter()
	return func() {
		p.soft, p.branch = soft, branch
		p.scopes.leave()
	}
}

// write notes that a name is set. In an if, whether it is late depends on what
// the other branches set.
func (p *parser) write(n string) error {
	switch kind := p.scopes.write(n); {
	case kind == plainWrite:
	case kind == oddWrite || p.branch > 0:
		return p.unsupported("setting " + n + " here after a loop or macro has read it")
	default:
		p.out.late[n] = true
	}
	return nil
}
