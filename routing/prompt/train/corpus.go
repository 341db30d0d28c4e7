package main

import (
	_ "embed"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/sallyport-ai/sallyport/routing/prompt/tokenizer"
)

var (
	//go:embed corpus/prose.txt
	prose string
	//go:embed corpus/code.txt
	code string
	//go:embed corpus/tongues.txt
	tongues string
	//go:embed corpus/words.txt
	wordLists string // lines: nouns, verbs, adjectives, the rest
)

// words counts the words of the whole corpus.
func words() map[string]int {
	counts := map[string]int{}
	add := func(text string, times int) {
		for w := range tokenizer.Words(text, tokenizer.QwenPattern) {
			counts[w] += times
		}
	}
	add(prose, 12)
	add(code, 6)
	add(tongues, 3)
	g := newGenerator()
	for range 9000 {
		add(g.sentence(), 1)
	}
	for range 2500 {
		add(g.object(), 1)
		add(g.function(), 1)
	}
	return counts
}

// generator puts sentences, JSON and code together from the word lists.
type generator struct {
	r                        *rand.Rand
	nouns, verbs, adjs, rest []string
}

func newGenerator() *generator {
	lines := strings.Split(strings.TrimSpace(wordLists), "\n")
	return &generator{
		r:     rand.New(rand.NewPCG(2026, 11)),
		nouns: strings.Fields(lines[0]), verbs: strings.Fields(lines[1]),
		adjs: strings.Fields(lines[2]), rest: strings.Fields(lines[3]),
	}
}

func (g *generator) pick(list []string) string { return list[g.r.IntN(len(list))] }

// inflect adds an ending with the usual changes of spelling.
func inflect(word, ending string) string {
	last := word[len(word)-1]
	vowelBefore := len(word) > 1 && strings.IndexByte("aeiou", word[len(word)-2]) >= 0
	switch {
	case ending == "s" && strings.HasSuffix(word, "y") && !vowelBefore:
		return word[:len(word)-1] + "ies"
	case ending == "s" && (last == 's' || last == 'x' || strings.HasSuffix(word, "ch") || strings.HasSuffix(word, "sh")):
		return word + "es"
	case last == 'e' && ending != "s" && ending != "ly":
		return word[:len(word)-1] + ending
	case last == 'y' && !vowelBefore && (ending == "ed" || ending == "ly"):
		return word[:len(word)-1] + "i" + ending
	}
	return word + ending
}

func title(w string) string { return strings.ToUpper(w[:1]) + w[1:] }

func (g *generator) sentence() string {
	n := func() string { return g.pick(g.nouns) }
	ns := func() string { return inflect(g.pick(g.nouns), "s") }
	v := func() string { return g.pick(g.verbs) }
	a := func() string { return g.pick(g.adjs) }
	o := func() string { return g.pick(g.rest) }
	switch g.r.IntN(9) {
	case 0:
		return fmt.Sprintf("The %s %s %s the %s of the %s. ", a(), n(), inflect(v(), "s"), n(), n())
	case 1:
		return fmt.Sprintf("Please %s the %s and %s the %s %s.\n", v(), n(), v(), a(), ns())
	case 2:
		return fmt.Sprintf("%s %s were %s by a %s, %s the %s was %s.\n\n", title(a()), ns(), inflect(v(), "ed"), n(), o(), n(), a())
	case 3:
		return fmt.Sprintf("Can you %s %s %s %s for %s %s? ", v(), o(), n(), ns(), inflect(v(), "ing"), ns())
	case 4:
		return fmt.Sprintf("- %s: %s %s, %s\n- %s %s\n", title(n()), inflect(a(), "ly"), inflect(v(), "ed"), ns(), title(v()), ns())
	case 5:
		return fmt.Sprintf("%s is %s %s %s %s, not the %s. ", title(n()), inflect(v(), "ing"), o(), a(), n(), n())
	case 6:
		return fmt.Sprintf("In %s %s they %s it %s %s. ", o(), n(), inflect(v(), "ed"), inflect(a(), "ly"), o())
	case 7:
		return fmt.Sprintf("%s %s (%s) %s \"%s\" and '%s'; ", title(o()), n(), ns(), v(), n(), a())
	}
	return fmt.Sprintf("How does %s %s %s the %s's %s? It %ss %s.\n", o(), n(), v(), n(), n(), "need", ns())
}

// object is a piece of JSON as it stands in tool schemas, calls and results.
func (g *generator) object() string {
	n, m, k := g.pick(g.nouns), g.pick(g.nouns), g.pick(g.nouns)
	v := g.pick(g.verbs)
	switch g.r.IntN(4) {
	case 0:
		return fmt.Sprintf(`{"type": "function", "function": {"name": "%s_%s", "description": "%s the %s of a %s.", "parameters": {"type": "object", "properties": {"%s_id": {"type": "string", "description": "The %s."}, "limit": {"type": "integer", "minimum": 1}}, "required": ["%s_id"], "additionalProperties": false}}}`, v, n, title(v), n, m, m, m, m)
	case 1:
		return fmt.Sprintf("{\"%s\": {\"%s\": %d, \"items\": [{\"%sId\": \"%x\", \"%s\": null, \"enabled\": true}]}}\n", n, m, g.r.IntN(1000), k, g.r.Uint32(), v)
	case 2:
		return fmt.Sprintf("{\"name\": \"%s_%s\", \"arguments\": {\"%s\": \"%s\", \"count\": %d}}\n", v, n, m, g.pick(g.adjs), g.r.IntN(50))
	}
	return fmt.Sprintf("{\n  \"%s\": [\n    {\"role\": \"user\", \"content\": \"%s\"},\n    {\"%s\": false}\n  ]\n}\n", n, strings.TrimSpace(g.sentence()), m)
}

// function is a few lines of code.
func (g *generator) function() string {
	n, m, v := g.pick(g.nouns), g.pick(g.nouns), g.pick(g.verbs)
	switch g.r.IntN(4) {
	case 0:
		return fmt.Sprintf("func %s%s(ctx context.Context, %s string) (*%s, error) {\n\tif %s == \"\" {\n\t\treturn nil, errors.New(\"%s is missing\")\n\t}\n\treturn s.%s(ctx, %s)\n}\n\n", title(v), title(n), m, title(n), m, m, v, m)
	case 1:
		return fmt.Sprintf("def %s_%s(self, %s=None):\n    for %s in self.%s:\n        if %s is not None:\n            self._%s.append(%s)\n    return %s\n", v, n, m, n, inflect(m, "s"), n, v, n, n)
	case 2:
		return fmt.Sprintf("  const %s%s = await this.%s.%s(%s, { %s: true });\n", n, title(m), m, v, n, m)
	}
	return fmt.Sprintf("%s_%s: \"%s-%s\"  # %s\n%s_%s = os.environ[\"%s_%s\"]\n", n, m, n, m, strings.TrimSpace(g.sentence()), n, v, strings.ToUpper(n), strings.ToUpper(v))
}
