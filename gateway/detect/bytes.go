package detect

// Character classes of a view.

func isDigit(b byte) bool { return '0' <= b && b <= '9' }
func isUpper(b byte) bool { return 'A' <= b && b <= 'Z' }
func isAlpha(b byte) bool { return 'a' <= b|0x20 && b|0x20 <= 'z' }
func isAlnum(b byte) bool { return isDigit(b) || isAlpha(b) }

func isEscape(b byte) bool { return b == 'n' || b == 'r' || b == 't' || b == 'b' || b == 'f' }

// at returns the byte at i, or 0 outside v.
func at(v []byte, i int) byte {
	if i < 0 || i >= len(v) {
		return 0
	}
	return v[i]
}

// run returns the end of the stretch from i whose bytes are all in class, at
// most most bytes long.
func run(v []byte, i, most int, class func(byte) bool) int {
	end := i
	for end < len(v) && end-i < most && class(v[end]) {
		end++
	}
	return end
}

// hasFold reports whether lower, which is lower case, stands at i in any case.
func hasFold(v []byte, i int, lower string) bool {
	if i < 0 || len(v)-i < len(lower) {
		return false
	}
	for j := range len(lower) {
		b := v[i+j]
		if isUpper(b) {
			b |= 0x20
		}
		if b != lower[j] {
			return false
		}
	}
	return true
}

// near reports whether one of the lower-case words stands within reach bytes
// before start or after end.
func near(v []byte, start, end, reach int, words ...string) bool {
	return within(v[max(0, start-reach):start], words) || within(v[end:min(len(v), end+reach)], words)
}

func within(stretch []byte, words []string) bool {
	for i, b := range stretch {
		if !isAlpha(b) {
			continue
		}
		for _, w := range words {
			if w[0] == b|0x20 && hasFold(stretch, i, w) {
				return true
			}
		}
	}
	return false
}
