package blocks

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The pool against a list that is searched.
func TestThePoolGivesOutWhatWasNotUsedForLongest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(rt, "blocks")
		p := New(n)
		var idle []int32 // in order
		uses := map[int32]int{}
		for i := range n {
			idle = append(idle, int32(i))
		}
		for range rapid.IntRange(0, 80).Draw(rt, "steps") {
			switch rapid.IntRange(0, 3).Draw(rt, "what") {
			case 0:
				if len(idle) == 0 {
					continue
				}
				if got := p.Next(); got != idle[0] {
					rt.Fatalf("gave out %d, want %d", got, idle[0])
				}
				uses[idle[0]]++
				idle = idle[1:]
			case 1:
				i := int32(rapid.IntRange(0, n-1).Draw(rt, "block"))
				p.Share(i)
				uses[i]++
				idle = slices.DeleteFunc(idle, func(x int32) bool { return x == i })
			case 2:
				var list []int32
				for i := range int32(n) {
					if uses[i] > 0 && rapid.Bool().Draw(rt, "release") {
						list = append(list, i)
					}
				}
				p.Release(list)
				for _, i := range slices.Backward(list) {
					if uses[i]--; uses[i] == 0 {
						idle = append(idle, i)
					}
				}
			default:
				twin := New(rapid.IntRange(1, 5).Draw(rt, "other"))
				twin.CopyFrom(p)
				p = twin
			}
			if p.Idle() != len(idle) || p.Len() != n {
				rt.Fatalf("%d of %d idle, want %d of %d", p.Idle(), p.Len(), len(idle), n)
			}
			for i := range int32(n) {
				if p.Used(i) != (uses[i] > 0) {
					rt.Fatalf("block %d is used: %v", i, p.Used(i))
				}
			}
		}
	})
}
