package detect

import "slices"

// number is a run of digits as people write them: solid, or in groups with the
// same short separator between all of them.
type number struct {
	digits [maxDigits]byte
	ends   [maxDigits]int // past each digit, in the view
	count  int

	groups [maxDigits]int // digits up to the end of each group, ascending
	parts  int
	sep    []byte // between the groups, but for white space
}

const (
	maxDigits = 20 // one more than the longest card number
	maxSep    = 3
)

func isSeparator(b byte) bool {
	return isSpace(b) || b == '-' || b == '.' || b == '/' || b == '_'
}

func isSpace(b byte) bool { return b == ' ' || b == '\n' || b == '\r' || b == '\t' }

// separator returns what is past the separator at i, and what it is made of
// besides white space. A line feed may be an escape that a nested JSON string
// still holds.
func separator(v []byte, i int) (next int, mark []byte) {
	next = i
	for range maxSep {
		switch b := at(v, next); {
		case isSpace(b):
			next++
		case isSeparator(b):
			mark = v[next : next+1]
			next++
		case b == '\\' && (at(v, next+1) == 'n' || at(v, next+1) == 'r' || at(v, next+1) == 't'):
			next += 2
		default:
			return next, mark
		}
	}
	return next, mark
}

// read reads up to most digits from i on.
func (n *number) read(v []byte, i, most int) {
	for n.count < most {
		for i < len(v) && isDigit(v[i]) && n.count < most {
			n.digits[n.count] = v[i]
			i++
			n.ends[n.count] = i
			n.count++
		}
		if isDigit(at(v, i)) {
			return // the last group is longer than what was read: no group ends here
		}
		n.groups[n.parts] = n.count
		n.parts++
		next, mark := separator(v, i)
		if next == i || !isDigit(at(v, next)) || n.parts > 1 && string(mark) != string(n.sep) {
			return
		}
		n.sep, i = mark, next
	}
}

// regular reports whether the first parts groups are as people write them:
// solid, equal ones with a shorter last, or one of the given layouts.
func (n *number) regular(parts int, layouts ...[]int) bool {
	var sizes [maxDigits]int
	from := 0
	for i, g := range n.groups[:parts] {
		sizes[i] = g - from
		from = g
	}
	for _, l := range layouts {
		if slices.Equal(sizes[:parts], l) {
			return true
		}
	}
	for _, s := range sizes[:parts-1] {
		if s != sizes[0] {
			return false
		}
	}
	return sizes[parts-1] <= sizes[0]
}

// issuer is a range of card numbers: numbers that start with from to to.
type issuer struct {
	from, to int // of the same number of digits
	prefix   int // that number
	lengths  []int
}

// issuers are the ranges of ISO/IEC 7812 that card schemes publish.
var issuers = []issuer{
	{4, 4, 1, []int{13, 16, 19}}, // Visa
	{51, 55, 2, []int{16}},
	{2221, 2720, 4, []int{16}}, // Mastercard
	{34, 34, 2, []int{15}},
	{37, 37, 2, []int{15}}, // American Express
	{6011, 6011, 4, []int{16, 19}},
	{644, 659, 3, []int{16, 19}},           // Discover, RuPay
	{3528, 3589, 4, []int{16, 17, 18, 19}}, // JCB
	{300, 305, 3, []int{14, 16}},
	{36, 36, 2, []int{14, 16}},
	{38, 39, 2, []int{14, 16}}, // Diners
	{62, 62, 2, []int{16, 17, 18, 19}},
	{81, 82, 2, []int{16}},                 // UnionPay, RuPay
	{2200, 2204, 4, []int{16, 17, 18, 19}}, // Mir
	{5018, 5018, 4, []int{12, 13, 14, 15, 16, 17, 18, 19}},
	{5020, 5020, 4, []int{12, 13, 14, 15, 16, 18, 19}}, // Maestro
	{5038, 5038, 4, []int{12, 13, 16, 18, 19}},
	{6304, 6304, 4, []int{12, 13, 16, 18, 19}},
	{6759, 6763, 4, []int{12, 13, 16, 18, 19}},
}

var cardLayouts = [][]int{{4, 6, 5}, {4, 6, 4}}

// cardWords make a short number a card number; longer ones need none.
var cardWords = []string{"card", "visa", "maestro", "credit", "debit", "pan"}

// paymentCard matches a primary account number: issuer range, length and check
// digit (ISO/IEC 7812-1 annex B).
func paymentCard(v []byte, i int) (int, int, bool) {
	var n number
	n.read(v, i, maxDigits)
	for parts := n.parts; parts > 0 && n.groups[parts-1] >= 12; parts-- {
		number := n.digits[:n.groups[parts-1]]
		if len(number) > 19 || !issued(number) || !luhn(number) || !n.regular(parts, cardLayouts...) {
			continue
		}
		end := n.ends[len(number)-1]
		if len(number) < 14 && !near(v, i, end, 32, cardWords...) {
			continue
		}
		return i, end, true
	}
	return 0, 0, false
}

func issued(digits []byte) bool {
	return slices.ContainsFunc(issuers, func(is issuer) bool {
		p := value(digits[:is.prefix])
		return is.from <= p && p <= is.to && slices.Contains(is.lengths, len(digits))
	})
}

func value(digits []byte) int {
	n := 0
	for _, d := range digits {
		n = n*10 + int(d-'0')
	}
	return n
}

func luhn(digits []byte) bool {
	sum := 0
	for i, d := range digits {
		n := int(d - '0')
		if (len(digits)-i)%2 == 0 {
			if n *= 2; n > 9 {
				n -= 9
			}
		}
		sum += n
	}
	return sum%10 == 0
}

// socialSecurity matches a US social security number: area, group and serial as
// the Social Security Administration assigns them. Written other than 3-2-4 it
// needs the context of a word.
func socialSecurity(v []byte, i int) (int, int, bool) {
	var n number
	n.read(v, i, 10)
	if !slices.Contains(n.groups[:n.parts], 9) {
		return 0, 0, false
	}
	area, group, serial := value(n.digits[:3]), value(n.digits[3:5]), value(n.digits[5:9])
	if area == 0 || area == 666 || area >= 900 || group == 0 || serial == 0 {
		return 0, 0, false
	}
	end := n.ends[8]
	asWritten := n.parts == 3 && n.groups[0] == 3 && n.groups[1] == 5
	if asWritten || near(v, i, end, 40, ssnWords...) {
		return i, end, true
	}
	return 0, 0, false
}

var ssnWords = []string{"ssn", "social sec", "soc sec", "social_sec", "socialsec", "social-sec", "s s n", "s.s.n", "s-s-n", "s_s_n"}
