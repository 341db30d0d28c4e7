package jinja

import "slices"

// IteratesContent reports whether the template loops over the content of a
// message, which is how vLLM tells (_detect_content_format in its chat_utils)
// that a template wants content as a list of parts instead of a string.
func (t *Template) IteratesContent() bool {
	lists := []string{"messages"}
	for i := 0; i < len(lists); i++ {
		for _, s := range t.sets {
			if s.attr == "" && len(s.names) == 1 && derives(s.value, lists[i], "") && !slices.Contains(lists, s.names[0]) {
				lists = append(lists, s.names[0])
			}
		}
	}
	var messages []string
	for _, l := range t.loops {
		if len(l.targets) == 1 && slices.ContainsFunc(lists, func(list string) bool { return derives(l.over, list, "") }) {
			messages = append(messages, l.targets[0])
		}
	}
	return slices.ContainsFunc(t.loops, func(l *forStmt) bool {
		return slices.ContainsFunc(messages, func(m string) bool { return derives(l.over, m, "content") })
	})
}

// derives reports whether x is the variable (or its member key, if not empty),
// filtered, tested or sliced.
func derives(x expr, variable, key string) bool {
	for {
		switch e := x.(type) {
		case *filterExpr:
			x = e.of
			continue
		case *testExpr:
			x = e.of
			continue
		case *sliceExpr:
			x = e.of
			continue
		case *nameExpr:
			return key == "" && e.name == variable
		case *attrExpr:
			return key != "" && e.name == key && isName(e.of, variable)
		case *itemExpr:
			c, ok := e.key.(*constExpr)
			return ok && key != "" && c.v == key && isName(e.of, variable)
		}
		return false
	}
}

func isName(x expr, name string) bool {
	n, ok := x.(*nameExpr)
	return ok && n.name == name
}
