package main

import (
	"cmp"
	"container/heap"
	"slices"

	"github.com/sallyport-ai/sallyport/routing/prompt/tokenizer"
)

type pair struct{ a, b int32 }

// wordCount is a word of the corpus as the tokens it has been merged to.
type wordCount struct {
	tokens []int32
	count  int
}

// learn is byte-pair encoding: it merges the most frequent pair of adjacent
// tokens, n times, and returns the vocabulary, spelled at byte level, and the
// merges in order. Of equally frequent pairs the one of older tokens wins.
func learn(counts map[string]int, n int) (tokens []string, merges [][2]string) {
	var byteToken [256]int32
	for b := range 256 {
		tokens = append(tokens, tokenizer.ByteLevel(string([]byte{byte(b)})))
	}
	slices.Sort(tokens)
	for b := range 256 {
		at, _ := slices.BinarySearch(tokens, tokenizer.ByteLevel(string([]byte{byte(b)})))
		byteToken[b] = int32(at)
	}
	l := learner{pairs: map[pair]*stat{}}
	for text, count := range counts {
		w := wordCount{count: count}
		for i := range len(text) {
			w.tokens = append(w.tokens, byteToken[text[i]])
		}
		l.words = append(l.words, w)
	}
	slices.SortFunc(l.words, func(a, b wordCount) int { return slices.Compare(a.tokens, b.tokens) })
	for i := range l.words {
		l.count(i, 1)
	}
	for p, s := range l.pairs {
		s.pair = p
		l.queue = append(l.queue, candidate{p, s.count})
	}
	heap.Init(&l.queue)
	for len(merges) < n {
		p, ok := l.best()
		if !ok {
			break
		}
		merges = append(merges, [2]string{tokens[p.a], tokens[p.b]})
		tokens = append(tokens, tokens[p.a]+tokens[p.b])
		l.merge(p, int32(len(tokens)-1))
	}
	return tokens, merges
}

// stat is what is known of a pair: how often it occurs, and in which words it
// may.
type stat struct {
	pair  pair
	count int
	words []int
}

type learner struct {
	words []wordCount
	pairs map[pair]*stat
	queue queue
}

// count adds the pairs of a word to the statistics, or takes them out.
func (l *learner) count(word, sign int) {
	w := &l.words[word]
	for i := range len(w.tokens) - 1 {
		p := pair{w.tokens[i], w.tokens[i+1]}
		s := l.pairs[p]
		if s == nil {
			s = &stat{pair: p}
			l.pairs[p] = s
		}
		s.count += sign * w.count
		if sign > 0 && (len(s.words) == 0 || s.words[len(s.words)-1] != word) {
			s.words = append(s.words, word)
		}
	}
}

// best is the most frequent pair that occurs more than once. Entries of the
// queue may be outdated; an outdated one is put back with its true count.
func (l *learner) best() (pair, bool) {
	for l.queue.Len() > 0 {
		c := heap.Pop(&l.queue).(candidate)
		if count := l.pairs[c.pair].count; count != c.count {
			heap.Push(&l.queue, candidate{c.pair, count})
			continue
		}
		return c.pair, c.count > 1
	}
	return pair{}, false
}

func (l *learner) merge(p pair, token int32) {
	touched := map[pair]bool{}
	for _, i := range l.pairs[p].words {
		w := &l.words[i]
		if !hasPair(w.tokens, p) {
			continue
		}
		l.count(i, -1)
		w.tokens = replacePair(w.tokens, p, token)
		l.count(i, 1)
		for j := range len(w.tokens) - 1 {
			if w.tokens[j] == token || w.tokens[j+1] == token {
				touched[pair{w.tokens[j], w.tokens[j+1]}] = true
			}
		}
	}
	for q := range touched {
		heap.Push(&l.queue, candidate{q, l.pairs[q].count})
	}
}

func hasPair(tokens []int32, p pair) bool {
	for i := range len(tokens) - 1 {
		if tokens[i] == p.a && tokens[i+1] == p.b {
			return true
		}
	}
	return false
}

func replacePair(tokens []int32, p pair, token int32) []int32 {
	out := tokens[:0]
	for i := 0; i < len(tokens); i++ {
		if i+1 < len(tokens) && tokens[i] == p.a && tokens[i+1] == p.b {
			out = append(out, token)
			i++
			continue
		}
		out = append(out, tokens[i])
	}
	return out
}

type candidate struct {
	pair  pair
	count int
}

// queue is a max-heap.
type queue []candidate

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(q[j].count, q[i].count), cmp.Compare(q[i].pair.a, q[j].pair.a), cmp.Compare(q[i].pair.b, q[j].pair.b)) < 0
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push and Pop are for container/heap.
func (q *queue) Push(x any) { *q = append(*q, x.(candidate)) }

// Pop removes the last element.
func (q *queue) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}
