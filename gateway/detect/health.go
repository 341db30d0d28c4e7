package detect

import "strings"

// recordWords introduce a medical record number. Between two words may stand a
// space, an underscore, a dash or nothing, as in medicalRecordNumber.
var recordWords = [][]string{
	{"mrn"},
	{"medical", "record"},
	{"med", "rec"},
	{"patient", "id"},
	{"patient", "number"},
	{"patient", "no"},
	{"hospital", "number"},
	{"hospital", "id"},
	{"health", "record"},
	{"chart", "number"},
	{"chart", "no"},
}

// medicalRecord matches a number that such a word introduces or follows. Record
// numbers have no format of their own: without the word there is nothing to go
// by.
func medicalRecord(v []byte, i int) (int, int, bool) {
	past, ok := recordWord(v, i)
	if !ok {
		return 0, 0, false
	}
	if start, end, ok := numberAfter(v, past); ok {
		return start, end, true
	}
	return numberBefore(v, i)
}

// recordWord matches what introduces a record number and returns what is past
// it.
func recordWord(v []byte, i int) (int, bool) {
	for _, w := range recordWords {
		if past, ok := phrase(v, i, w); ok {
			return past, true
		}
	}
	return spelled(v, i, "mrn")
}

// spelled matches a word whose letters all have the same separator between.
func spelled(v []byte, i int, word string) (int, bool) {
	sep := at(v, i+1)
	if !isSeparator(sep) {
		return 0, false
	}
	for n := range len(word) {
		if n > 0 {
			if at(v, i) != sep {
				return 0, false
			}
			i++
		}
		if !hasFold(v, i, word[n:n+1]) {
			return 0, false
		}
		i++
	}
	return i, true
}

// phrase matches words at i and returns what is past them.
func phrase(v []byte, i int, words []string) (int, bool) {
	for n, word := range words {
		if b := at(v, i); n > 0 && (b == ' ' || b == '_' || b == '-') {
			i++
		}
		if !hasFold(v, i, word) {
			return 0, false
		}
		i += len(word)
	}
	return i, true
}

// fillers may stand between the word and its number.
// Some are what JSON schemas and lists of names and values put there.
var fillers = []string{
	"number", "num", "no", "id", "identifier", "is", "nr", "was", "of", "the",
	"const", "value", "enum", "default", "example", "type", "string",
}

const (
	maxGap        = 32 // bytes between word and number
	leastIDDigits = 4
	maxID         = 20
)

func numberAfter(v []byte, i int) (start, end int, ok bool) {
	for limit := i + maxGap; i < len(v) && i < limit; {
		if end, ok := identifier(v, i); ok {
			return i, end, true
		}
		if !isAlpha(v[i]) {
			i++
			continue
		}
		past := i
		for _, f := range fillers {
			if hasFold(v, i, f) && !isAlpha(at(v, i+len(f))) {
				past = i + len(f)
			}
		}
		if past == i {
			return 0, 0, false
		}
		i = past
	}
	return 0, 0, false
}

// identifier matches up to three letters and at least four digits, which may be
// in groups.
func identifier(v []byte, i int) (int, bool) {
	if isAlnum(at(v, i-1)) {
		return 0, false
	}
	j := run(v, i, 3, isAlpha)
	count := 0
	end := j
	for k := j; k < len(v) && k-i < maxID; k++ {
		switch {
		case isDigit(v[k]):
			count++
			end = k + 1
		case isAlpha(v[k]) || !isSeparator(v[k]) || !isDigit(at(v, k+1)) && k > j:
			return end, count >= leastIDDigits && !isAlpha(v[k])
		}
	}
	return end, count >= leastIDDigits
}

// numberBefore matches a number right before the word at i: "00123456 (MRN)".
func numberBefore(v []byte, i int) (start, end int, ok bool) {
	end = i
	for end > 0 && i-end < 3 && (v[end-1] == ' ' || v[end-1] == '(' || v[end-1] == '[') {
		end--
	}
	start = end
	for start > 0 && end-start < maxID && isDigit(v[start-1]) {
		start--
	}
	return start, end, end < i && end-start >= leastIDDigits
}

// mbiForm is the form of a Medicare beneficiary identifier (CMS): C is 1 to 9, N
// a digit, A a letter and X either, of the letters without S, L, O, I, B and Z.
const mbiForm = "CAXNAXNAANN"

func medicareID(v []byte, i int) (int, int, bool) {
	j := i
	for n, form := range []byte(mbiForm) {
		if (n == 4 || n == 7) && at(v, j) == '-' {
			j++
		}
		b := at(v, j)
		letter := isAlpha(b) && !strings.ContainsRune("SLOIBZ", rune(b&^0x20))
		ok := form != 'A' && isDigit(b) || form != 'C' && form != 'N' && letter
		if !ok || form == 'C' && b == '0' {
			return 0, 0, false
		}
		j++
	}
	return i, j, !isAlnum(at(v, j))
}
