package detect

import "slices"

// number is a run of digits as people write them: solid, or in groups with the
// same short separator between all of them.
type number struct {
	digits []byte // at most maxDigits
	ends   []int  // past each digit, in the view
	groups []int  // digits up to the end of each group, ascending
	sep    []byte
}

const (
	maxDigits = 20 // one more than the longest card number
	maxSep    = 3
)

func isSeparator(b byte) bool { return b == ' ' || b == '-' || b == '.' || b == '/' || b == '_' }

// readNumber reads the number that starts at i. ok is false where i is not the
// start of a run of digits.
func readNumber(v []byte, i int, n *number) bool {
	if isDigit(at(v, i-1)) {
		return false
	}
	n.digits, n.ends, n.groups, n.sep = n.digits[:0], n.ends[:0], n.groups[:0], nil
	for len(n.digits) <= maxDigits {
		for i < len(v) && isDigit(v[i]) && len(n.digits) <= maxDigits {
			n.digits = append(n.digits, v[i])
			i++
			n.ends = append(n.ends, i)
		}
		n.groups = append(n.groups, len(n.digits))
		next := run(v, i, maxSep, isSeparator)
		if next == i || !isDigit(at(v, next)) || n.sep != nil && string(v[i:next]) != string(n.sep) {
			break
		}
		n.sep, i = v[i:next], next
	}
	return true
}

// regular reports whether the first count digits form groups as people write
// them: solid, equal ones with a shorter last, or one of the given layouts.
func (n *number) regular(count int, layouts ...[]int) bool {
	last := slices.Index(n.groups, count)
	if last < 0 {
		return false
	}
	sizes := make([]int, 0, maxDigits)
	from := 0
	for _, g := range n.groups[:last+1] {
		sizes = append(sizes, g-from)
		from = g
	}
	for _, l := range layouts {
		if slices.Equal(sizes, l) {
			return true
		}
	}
	for _, s := range sizes[:last] {
		if s != sizes[0] {
			return false
		}
	}
	return sizes[last] <= sizes[0]
}

// issuer is a range of card numbers: numbers that start with from to to.
type issuer struct {
	from, to int // of the same number of digits
	prefix   int // that number
	lengths  []int
}

// issuers are the ranges of ISO/IEC 7812 that card schemes publish.
var issuers = []issuer{
	{4, 4, 1, []int{13, 16, 19}},                       // Visa
	{51, 55, 2, []int{16}}, {2221, 2720, 4, []int{16}}, // Mastercard
	{34, 34, 2, []int{15}}, {37, 37, 2, []int{15}}, // American Express
	{6011, 6011, 4, []int{16, 19}}, {644, 659, 3, []int{16, 19}}, // Discover, RuPay
	{3528, 3589, 4, []int{16, 17, 18, 19}},                                               // JCB
	{300, 305, 3, []int{14, 16}}, {36, 36, 2, []int{14, 16}}, {38, 39, 2, []int{14, 16}}, // Diners
	{62, 62, 2, []int{16, 17, 18, 19}}, {81, 82, 2, []int{16}}, // UnionPay, RuPay
	{2200, 2204, 4, []int{16, 17, 18, 19}},                                                                     // Mir
	{5018, 5018, 4, []int{12, 13, 14, 15, 16, 17, 18, 19}}, {5020, 5020, 4, []int{12, 13, 14, 15, 16, 18, 19}}, // Maestro
	{5038, 5038, 4, []int{12, 13, 16, 18, 19}}, {6304, 6304, 4, []int{12, 13, 16, 18, 19}},
	{6759, 6763, 4, []int{12, 13, 16, 18, 19}},
}

var cardLayouts = [][]int{{4, 6, 5}, {4, 6, 4}}

// cardWords make a short number a card number; longer ones need none.
var cardWords = []string{"card", "visa", "maestro", "credit", "debit", "pan"}

// paymentCard matches a primary account number: issuer range, length and check
// digit (ISO/IEC 7812-1 annex B).
func paymentCard(v []byte, i int) (int, int, bool) {
	var n number
	if !isDigit(at(v, i+1)) && !isSeparator(at(v, i+1)) || !readNumber(v, i, &n) {
		return 0, 0, false
	}
	for g := len(n.groups) - 1; g >= 0; g-- {
		count := n.groups[g]
		if count < 12 || count > 19 || !issued(n.digits[:count]) || !luhn(n.digits[:count]) || !n.regular(count, cardLayouts...) {
			continue
		}
		end := n.ends[count-1]
		if count < 14 && !near(v, i, end, 32, cardWords...) {
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

var ssnLayout = []int{3, 2, 4}

// socialSecurity matches a US social security number: area, group and serial as
// the Social Security Administration assigns them. Written other than 3-2-4 it
// needs the context of a word.
func socialSecurity(v []byte, i int) (int, int, bool) {
	var n number
	if !readNumber(v, i, &n) || len(n.digits) < 9 || !slices.Contains(n.groups, 9) {
		return 0, 0, false
	}
	area, group, serial := value(n.digits[:3]), value(n.digits[3:5]), value(n.digits[5:9])
	if area == 0 || area == 666 || area >= 900 || group == 0 || serial == 0 {
		return 0, 0, false
	}
	end := n.ends[8]
	asWritten := len(n.groups) == 3 && n.groups[0] == ssnLayout[0] && n.groups[1] == 5 && len(n.sep) > 0
	if asWritten || near(v, i, end, 40, "ssn", "social sec", "soc sec", "social_sec", "socialsec") {
		return i, end, true
	}
	return 0, 0, false
}
