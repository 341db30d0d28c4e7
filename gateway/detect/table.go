package detect

import "github.com/sallyport-ai/sallyport/policy"

// Rule is one detector.
type Rule struct {
	Name     string // stable: records and policy name it
	Category policy.Category

	// first are the bytes at which match is tried. match reports the stretch of
	// v that the detector claims; it looks at a bounded stretch around i.
	first string
	match func(v []byte, i int) (start, end int, ok bool)
}

const (
	digits  = "0123456789"
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

// Table returns the detectors in order of name within category.
func Table() []Rule {
	return []Rule{
		{"medical_record_number", policy.PHI, "mMpPhHcC", medicalRecord},
		{"medicare_beneficiary", policy.PHI, "123456789", medicareID},

		{"payment_card", policy.PCI, digits, paymentCard},

		{"email_address", policy.PII, "@", emailAddress},
		{"iban", policy.PII, letters, iban},
		{"us_ssn", policy.PII, digits, socialSecurity},

		{"aws_secret_key", policy.Secret, "sS", awsSecret},
		{"json_web_token", policy.Secret, "e", jsonWebToken},
		{"private_key", policy.Secret, "-", privateKey},
		{"provider_key", policy.Secret, keyFirst(), providerKey},
	}
}

// dispatch lists for each byte the rules to try there.
var dispatch = func() (by [256][]Rule) {
	for _, rule := range Table() {
		for _, b := range []byte(rule.first) {
			by[b] = append(by[b], rule)
		}
	}
	return by
}()
