package detect

import "bytes"

// emailAddress matches the common form of RFC 5321 addresses around an @.
func emailAddress(v []byte, i int) (int, int, bool) {
	start := i
	for start > 0 && i-start < 64 && isLocal(v[start-1]) {
		start--
	}
	for start < i && v[start] == '.' {
		start++
	}
	end := run(v, i+1, 253, isDomain)
	for end > i+1 && !isAlnum(v[end-1]) {
		end--
	}
	domain := v[i+1 : end]
	dot := bytes.LastIndexByte(domain, '.')
	if start == i || dot < 1 || len(domain)-dot-1 < 2 || !isAlnum(domain[0]) {
		return 0, 0, false
	}
	for _, b := range domain[dot+1:] {
		if !isAlpha(b) {
			return 0, 0, false
		}
	}
	return start, end, true
}

func isLocal(b byte) bool {
	return isAlnum(b) || b == '.' || b == '_' || b == '%' || b == '+' || b == '-' || b == other
}

func isDomain(b byte) bool { return isAlnum(b) || b == '.' || b == '-' || b == other }

// ibanLengths is the SWIFT IBAN registry: country to total length.
var ibanLengths = map[string]int{
	"AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22,
	"BR": 29, "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DK": 18, "DO": 28,
	"EE": 20, "EG": 29, "ES": 24, "FI": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23,
	"GL": 18, "GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26,
	"IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20, "LU": 20,
	"LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MR": 27, "MT": 31, "MU": 30,
	"NL": 18, "NO": 15, "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22,
	"SA": 24, "SC": 31, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "ST": 25, "SV": 28, "TL": 23,
	"TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20,
}

// iban matches an international bank account number: country, length and the
// mod-97 check of ISO 13616.
func iban(v []byte, i int) (int, int, bool) {
	check := i + 2
	if isSeparator(at(v, check)) {
		check++
	}
	if !isAlpha(at(v, i+1)) || !isDigit(at(v, check)) {
		return 0, 0, false
	}
	length, known := ibanLengths[string([]byte{v[i] &^ 0x20, v[i+1] &^ 0x20})]
	if !known {
		return 0, 0, false
	}
	compact := make([]byte, 0, 34)
	j := i
	for j < len(v) && len(compact) < length {
		switch b := v[j]; {
		case isAlnum(b):
			compact = append(compact, b)
		case !isSeparator(b) || isSeparator(at(v, j+1)):
			return 0, 0, false
		}
		j++
	}
	if len(compact) < length || isAlnum(at(v, j)) || !mod97(compact) {
		return 0, 0, false
	}
	return i, j, true
}

// mod97 checks ISO 7064 mod 97-10 with the first four characters moved last.
func mod97(compact []byte) bool {
	rem := 0
	for i := range compact {
		b := compact[(i+4)%len(compact)]
		if isDigit(b) {
			rem = (rem*10 + int(b-'0')) % 97
		} else {
			rem = (rem*100 + int(b&^0x20-'A') + 10) % 97
		}
	}
	return rem == 1
}
