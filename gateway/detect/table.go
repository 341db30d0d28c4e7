package detect

import "github.com/sallyport-ai/sallyport/policy"

// Rule is one detector.
type Rule struct {
	Name     string // stable: records and policy name it
	Category policy.Category

	// where and first say at which places match is tried. match reports the
	// stretch of v that the detector claims; it looks at a bounded stretch
	// around i.
	where place
	first string
	match func(v []byte, i int) (start, end int, ok bool)
}

// place is where a match can begin.
type place int

const (
	anywhere place = iota
	atNumber       // no digit stands before
	atWord         // no letter or digit stands before
)

const (
	digits  = "0123456789"
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

// Table returns the detectors by category.
func Table() []Rule {
	return []Rule{
		{"medical_record_number", policy.PHI, atWord, "mMpPhHcC", medicalRecord},
		{"medicare_beneficiary", policy.PHI, atWord, "123456789", medicareID},

		{"payment_card", policy.PCI, atNumber, "234568", paymentCard},

		{"email_address", policy.PII, anywhere, "@", emailAddress},
		{"iban", policy.PII, atWord, letters, iban},
		{"us_ssn", policy.PII, atNumber, digits, socialSecurity},

		{"aws_secret_key", policy.Secret, anywhere, "sS", awsSecret},
		{"json_web_token", policy.Secret, atWord, "e", jsonWebToken},
		{"private_key", policy.Secret, anywhere, "-", privateKey},
		{"provider_key", policy.Secret, atWord, keyFirst(), providerKey},
		{"sallyport_key", policy.Secret, atWord, "s", sallyportKey},
	}
}

var rules = Table()

const maxRules = 16 // no fewer than the rules there are

// dispatch lists for each place and byte the indexes of the rules to try there:
// those of a place also where a narrower one is met.
var dispatch = func() (by [3][256][]int) {
	for n, rule := range rules {
		for at := rule.where; at <= atWord; at++ {
			for _, b := range []byte(rule.first) {
				by[at][b] = append(by[at][b], n)
			}
		}
	}
	return by
}()

// placeAt returns the narrowest place that i is. The letter of an escape such
// as \n, which a nested JSON string still holds, does not stand before.
func placeAt(v []byte, i int) place {
	switch {
	case i == 0 || !isAlnum(v[i-1]):
		return atWord
	case i >= 2 && v[i-2] == '\\' && isEscape(v[i-1]):
		return atWord
	case isDigit(v[i-1]):
		return anywhere
	default:
		return atNumber
	}
}
