package detect

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/policy"
)

func names(found []Finding) []string {
	var out []string
	for _, f := range found {
		out = append(out, f.Detector)
	}
	return out
}

// made is a credential of the right form that is nobody's.
func made(prefix string, n int) string { return prefix + strings.Repeat("a1B2", n)[:n] }

// ownKey is of the form of an API key, and nobody's.
const ownKey = "sp_4fT9bQ0ZxWm_T2k0000000000000000000000000000000000000q8Z_0PFYVM"

func TestScan(t *testing.T) {
	card, ssn, mail := []string{"payment_card"}, []string{"us_ssn"}, []string{"email_address"}
	record, mbi, account := []string{"medical_record_number"}, []string{"medicare_beneficiary"}, []string{"iban"}
	secret := []string{"provider_key"}
	jwt := "eyJ" + strings.Repeat("a", 20) + ".eyJ" + strings.Repeat("b", 20) + "." + strings.Repeat("c", 20)
	cases := []struct {
		claim string
		text  string
		want  []string
	}{
		{"a card number", "card 4111111111111111.", card},
		{"a card number in groups", "4111 1111 1111 1111", card},
		{"a card number with dashes", "4111-1111-1111-1111", card},
		{"a card number with dots and a code after it", "4111.1111.1111.1111 123", card},
		{"a card number digit by digit", "4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1", card},
		{"a card number in wide groups", "4111 - 1111 - 1111 - 1111", card},
		{"an American Express layout", "3782 822463 10005", card},
		{"a card number in full-width digits", "４１１１１１１１１１１１１１１１", card},
		{"a card number in Arabic-Indic digits", "٤١١١١١١١١١١١١١١١", card},
		{"a card number in mathematical digits", "𝟒𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏𝟏", card},
		{"a card number with zero-width spaces", "4111\u200b1111\u200b1111\u200b1111", card},
		{"a card number with no-break spaces and dashes", "4111\u00a01111\u00a01111\u00a01111", card},
		{"a card number with soft hyphens", "41\u00ad11111111111111", card},
		{"a card number with Unicode dashes", "4111–1111–1111–1111", card},
		{"a card number behind escapes of nested JSON", `{"n":"\u0034111111111111111"}`, card},
		{"a card number after a nested line feed", `\n4111111111111111`, card},
		{"a card number in circled digits", "④①①①①①①①①①①①①①①①", card},
		{"a card number in dark circles", "❹❶❶❶❶❶❶❶❶❶❶❶❶❶❶❶", card},
		{"a card number in superscript", "⁴¹¹¹¹¹¹¹¹¹¹¹¹¹¹¹", card},
		{"a card number in subscript", "₄₁₁₁₁₁₁₁₁₁₁₁₁₁₁₁", card},
		{"a card number in key caps", "4\ufe0f\u20e31\ufe0f\u20e31\ufe0f\u20e31\ufe0f\u20e3 1111 1111 1111", card},
		{"a card number in HTML entities", "&#52;&#49;&#x31;1&#32;&#0049;111 1111&nbsp;1111", card},
		{"a card number in percent encoding", "%34%31%31%31%201111%201111%201111", card},
		{"a card number line by line", "4111\n1111\n1111\n1111", card},
		{"a card number over CR LF", "4111\r\n1111\r\n1111\r\n1111", card},
		{"a card number over two lines", "4111 1111\n1111 1111", card},
		{"a card number with dashes over two lines", "4111-1111-\n1111-1111", card},
		{"a card number over lines of nested JSON", `{"n":"4111\n1111\n1111\n1111"}`, card},
		{"percent signs in prose are none", "4111%20 of 1111%31 and 50%", nil},
		{"an ampersand in prose is none", "4111&#1111&#;1111 & 1111", nil},
		{"a Mastercard of the new range", "2223003122003222", card},
		{"a short number near the word card", "card: 4222222222222", card},
		{"a short number alone is none", "id 4222222222222", nil},
		{"a wrong check digit is none", "4111111111111112", nil},
		{"a number of no issuer is none", "1234567812345670", nil},
		{"a longer number is none", "94111111111111111", nil},
		{"odd groups are none", "41 111 1111 11111 11", nil},

		{"a social security number", "SSN 536-90-4399", ssn},
		{"a social security number with spaces", "it is 536 90 4399", ssn},
		{"a social security number with en dashes", "536–90–4399", ssn},
		{"a solid one near its name", "my ssn is 536904399", ssn},
		{"a solid one before its name", "536904399 (social security)", ssn},
		{"a spaced one near its name", "ssn: 5 3 6 9 0 4 3 9 9", ssn},
		{"a solid one near its spelled name", "S S N 536904399", ssn},
		{"one over lines", "536\n90\n4399", ssn},
		{"a solid one alone is none", "order 536904399", nil},
		{"area 000 is none", "000-90-4399", nil},
		{"area 666 is none", "666-90-4399", nil},
		{"area 900 is none", "900-90-4399", nil},
		{"group 00 is none", "536-00-4399", nil},
		{"serial 0000 is none", "536-90-0000", nil},
		{"mixed separators are none", "536-90 4399", nil},
		{"a longer number with dashes is none", "536-90-43991", nil},
		{"a part of a longer number is none", "1536-90-4399", nil},

		{"a record number", "MRN 00123456", record},
		{"a record number with a letter", "mrn: A1234567", record},
		{"a record number in groups", "MRN#000-123-456", record},
		{"a record number in words", "Medical record number is 4820193", record},
		{"a record number in a nested field", `{"medicalRecordNumber":"4820193"}`, record},
		{"a patient id in a field", `"patient_id": "P-48201"`, record},
		{"a number before its name", "48201933 (MRN)", record},
		{"a name with a Cyrillic letter", "МRN 00123456", record},
		{"a name in Greek letters", "ΜRΝ 00123456", record},
		{"a name in mathematical letters", "𝐌𝐑𝐍 00123456", record},
		{"a name in script letters", "ℳℛ𝒩 00123456", record},
		{"a name in circled letters", "ⓂⓇⓃ ⓪⓪①②③④⑤⑥", record},
		{"a name in dark squares", "🅼🆁🅽 00123456", record},
		{"a name in small capitals", "ᴍʀɴ 00123456", record},
		{"a name in letters with marks", "Ḿṙñ 00123456", record},
		{"a name in letters with combining marks", "M\u0301R\u0307N\u0303 00123456", record},
		{"a name in Cherokee and Lisu", "ᎷᎡꓠ 00123456", record},
		{"a spelled name", "M R N 00123456", record},
		{"a spelled name with points", "m.r.n. 00123456", record},
		{"a spelled name with dashes", "M-R-N: 00123456", record},
		{"a name in Cyrillic words", "раtiеnt id 00123456", record},
		{"a constant of a nested schema", `{"mrn":{"type":"string","const":"00481516"}}`, record},
		{"a value of a named thing", `{"type":{"text":"MRN"},"value":"00481516"}`, record},
		{"a man's initial is no name", "Mr N 48201", nil},
		{"the word alone is none", "the MRN was missing in 3 of them", nil},
		{"another word is none", "MRNA vaccine 162b2000", nil},
		{"a Medicare identifier", "1EG4-TE5-MK73", mbi},
		{"a solid Medicare identifier", "id 1EG4TE5MK73.", mbi},
		{"a Medicare identifier with a forbidden letter is none", "1SG4TE5MK73", nil},

		{"an address", "mail jane.doe+x@mail.example.org.", mail},
		{"an address in brackets", "<a@b.co>", mail},
		{"an address with a full-width at", "jane＠example.org", mail},
		{"no domain is none", "jane@localhost", nil},
		{"a numeric top level is none", "a@1.2", nil},
		{"no local part is none", "@example.org", nil},

		{"an account number", "DE89 3704 0044 0532 0130 00", account},
		{"a solid lower-case account number", "gb82west12345698765432", account},
		{"a wrong check is none", "DE88370400440532013000", nil},
		{"a short account number is none", "DE8937040044053201300", nil},
		{"a country without account numbers is none", "US89370400440532013000", nil},

		{"an OpenAI key", made("sk-proj-", 40), secret},
		{"an AWS key id", "AKIAIOSFODNN7EXAMPLE", secret},
		{"a GitHub token", made("ghp_", 36), secret},
		{"a fine-grained GitHub token", made("github_pat_", 40), secret},
		{"a Google key", made("AIza", 35), secret},
		{"a Slack token", made("xoxb-", 30), secret},
		{"a key after a nested line feed", `\n` + made("ghp_", 36), secret},
		{"a key in an assignment", "TOKEN=" + made("glpat-", 20), secret},
		{"a word that begins like a key is none", "sk-learn-is-a-library-of-long-words", nil},
		{"a short key is none", "sk-abc123", nil},
		{"a key inside a word is none", "risk-" + strings.Repeat("a1", 15), nil},
		{"a private key", "-----BEGIN RSA PRIVATE KEY-----\nMII", []string{"private_key"}},
		{"a key of this gateway", ownKey, []string{"sallyport_key"}},
		{"a key of this gateway in a header", "x-api-key: " + ownKey + "\n", []string{"sallyport_key"}},
		{"one with a wrong digit is none", strings.Replace(ownKey, "4fT", "4fU", 1), nil},
		{"one that goes on is none", ownKey + "x", nil},
		{"a private key of no kind", "-----BEGIN PRIVATE KEY-----", []string{"private_key"}},
		{"a public key is none", "-----BEGIN PUBLIC KEY-----", nil},
		{"a web token", "Bearer " + jwt, []string{"json_web_token"}},
		{"two segments are none", jwt[:strings.LastIndexByte(jwt, '.')], nil},
		{"an AWS secret", "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", []string{"aws_secret_key"}},
		{"a digest without the name is none", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", nil},

		{"several in one text", "a@b.org paid with 4111111111111111, SSN 536-90-4399", []string{"email_address", "payment_card", "us_ssn"}},
		{"plain prose", "The quick brown fox, aged 42, met 17 others on 2026-11-05 at 10:15.", nil},
		{"a phone number", "+1 (415) 555-2671", nil},
		{"nothing", "", nil},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			if got := names(Scan([]byte(c.text))); !reflect.DeepEqual(got, c.want) {
				t.Errorf("%q: got %v, want %v", c.text, got, c.want)
			}
		})
	}
}

func TestOffsetsAreOfTheOriginalText(t *testing.T) {
	for text, want := range map[string]string{
		"xx 4111111111111111 yy":              "4111111111111111",
		"é 4111\u200b1111\u200b1111-1111, é":  "4111\u200b1111\u200b1111-1111",
		"é ４１１１１１１１１１１１１１１１ é":                "４１１１１１１１１１１１１１１１",
		`{"k":"\u0034111111111111111","é":1}`: `\u0034111111111111111`,
		"mail é@ü.org? no; jane@example.org!": "jane@example.org",
	} {
		found := Scan([]byte(text))
		if len(found) == 0 || text[found[len(found)-1].Start:found[len(found)-1].End] != want {
			t.Errorf("%q: found %v", text, found)
		}
	}
}

func scanAll(s Scanner, texts ...string) Report {
	return s.Texts(func(yield func(string, []byte) bool) {
		for _, text := range texts {
			stream, rest, _ := strings.Cut(text, "|")
			if !yield(stream, []byte(rest)) {
				return
			}
		}
	})
}

func TestScannerReadsAcrossSeams(t *testing.T) {
	card := []Hit{{"payment_card", policy.PCI, 1}}
	ssn := []Hit{{"us_ssn", policy.PII, 1}}
	record := []Hit{{"medical_record_number", policy.PHI, 1}}
	bits := func(s string) []string {
		var out []string
		for _, b := range s {
			out = append(out, "m|"+string(b))
		}
		return out
	}
	cases := []struct {
		claim string
		texts []string
		want  []Hit
	}{
		{"a number cut in two", []string{"m|pay 41111111", "m|11111111 now"}, card},
		{"a number cut in groups", []string{"m|4111 1111 ", "m|1111 1111"}, card},
		{"a number cut in single digits", bits("4111111111111111"), card},
		{"a number in one text counts once", []string{"m|x", "m|4111111111111111", "m|y"}, card},
		{"a number and its word in two texts", []string{"m|my ssn is", "m| 536904399"}, ssn},
		{"a text of another stream between the halves", []string{"m|41111111", "n|jane", "m|11111111"}, card},
		{"halves in different streams are no number", []string{"m|41111111", "n|11111111"}, nil},
		{"a long text before the seam", []string{"m|" + strings.Repeat("x ", 500) + "41111111", "m|11111111" + strings.Repeat(" x", 500)}, card},
		{"a word and its number in two texts", []string{"m|…MRN", "m|00481516"}, record},
		{"a word and its number in short texts", []string{"m|M", "m|R", "m|N", "m|00481516"}, record},
		{"a word in two texts", []string{"m|medical", "m|record number", "m|00481516"}, record},
		{"a long text before the word", []string{"m|" + strings.Repeat("x ", 500) + "MRN", "m|00481516" + strings.Repeat(" x", 500)}, record},
		{"a social security number and its word", []string{"m|ssn", "m|536904399"}, ssn},
		{"a name with its value", []string{"m|mrn", "n|481516", "|mrn: 481516"}, record},
		{"a value that was found counts once", []string{"m|4111111111111111", "|card: 4111111111111111"}, card},
		{"names that stand for themselves have no seam", []string{"|x: 41111111", "|11111111"}, nil},
		{"two findings", []string{"m|4111111111111111", "m| and 5555555555554444"}, []Hit{{"payment_card", policy.PCI, 2}}},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			r := scanAll(Scanner{}, c.texts...)
			if !reflect.DeepEqual(r.Hits, c.want) || r.NotScanned {
				t.Errorf("got %+v, want %v", r, c.want)
			}
		})
	}
}

func TestScannerSaysWhatItDidNotScan(t *testing.T) {
	r := scanAll(Scanner{Budget: 50}, "m|4111111111111111", "m|"+strings.Repeat("x", 100), "m|536-90-4399")
	if !r.NotScanned || !reflect.DeepEqual(r.Categories(), []policy.Category{policy.PCI}) {
		t.Errorf("got %+v", r)
	}
	if r := scanAll(Scanner{}); r.NotScanned || r.Hits != nil {
		t.Errorf("no text: %+v", r)
	}
}

// TestALongTextIsReadAsAShortOne plants a number at and around every place where
// the window over a long text moves.
func TestALongTextIsReadAsAShortOne(t *testing.T) {
	number := "4111\u200b1111 1111\u00ad1111"
	token := "eyJ" + strings.Repeat("a", mostJWT-8) + ".eyJ" + strings.Repeat("b", mostJWT-8) + "." + strings.Repeat("c", mostJWT-8)
	for _, planted := range []string{number, token, "МRN is 00123456", "a@b.org", "48201933 (MRN)"} {
		want := names(Scan([]byte(planted)))
		for _, lead := range []string{"é ", "\u200b\u200b. "} {
			visible := len(normalized(lead))
			for _, edge := range []int{step, step + behind, 2*step + behind} {
				for _, off := range []int{-70, -7, -1, 0} {
					before := strings.Repeat(lead, (edge+off)/visible)
					text := before + planted + strings.Repeat(" é", ahead)
					found := Scan([]byte(text))
					if !reflect.DeepEqual(names(found), want) {
						t.Fatalf("%d characters before %.20q: found %v, want %v", (edge+off)/visible*visible, planted, found, want)
					}
					if at := found[0].Start; at < len(before) || at >= len(before)+len(planted) {
						t.Fatalf("found at %d, planted at %d", at, len(before))
					}
				}
			}
		}
	}
}

func normalized(text string) (out []byte) {
	views([]byte(text), func(v view, _, _, _ int) { out = slices.Clone(v.bytes) })
	return out
}

// TestScanningTakesLittleMemory scans texts that hold nothing but findings, or
// need a view, or are many.
func TestScanningTakesLittleMemory(t *testing.T) {
	for _, unit := range []string{"a@b.co ", "é", "1é", "\u200b", "4111111111111111 ", "%34"} {
		long := []byte(strings.Repeat(unit, 6<<20/len(unit)))
		short := []byte(unit)
		for claim, texts := range map[string]func(func(string, []byte) bool){
			"one long text": func(yield func(string, []byte) bool) { yield("m", long) },
			"many texts": func(yield func(string, []byte) bool) {
				for range 20_000 {
					if !yield("m", short) || !yield(Alone, short) {
						return
					}
				}
			},
		} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			Scanner{}.Texts(texts)
			runtime.ReadMemStats(&after)
			if cost := after.TotalAlloc - before.TotalAlloc; cost > 128<<20 || cost > 4<<20 && claim == "one long text" {
				t.Errorf("%s of %q allocate %d bytes", claim, unit, cost)
			}
		}
	}
}

func TestEveryRuleHasItsPlace(t *testing.T) {
	if len(rules) > maxRules {
		t.Errorf("%d rules, room for %d", len(rules), maxRules)
	}
}

// TestLookalikesStandForOneLetter asks of each that it is not ASCII itself and
// stands before an ASCII letter.
func TestLookalikesStandForOneLetter(t *testing.T) {
	for r, b := range lookalikes {
		if r < 0x80 || !isAlpha(b) {
			t.Errorf("%q stands for %q", r, b)
		}
	}
	for r := rune(0x80); r < lowEnd; r++ {
		b, visible := plain(r)
		if got, shown := plainByte(r); shown != visible || visible && got != b {
			t.Errorf("%U: %q, want %q", r, got, b)
		}
	}
}

func TestTableIsWellFormed(t *testing.T) {
	seen := map[string]bool{}
	for _, rule := range Table() {
		if seen[rule.Name] || rule.first == "" || rule.match == nil {
			t.Errorf("bad rule %q", rule.Name)
		}
		seen[rule.Name] = true
	}
}

// TestFalseMatchesAreRare scans random identifiers, dates and amounts.
func TestFalseMatchesAreRare(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const n = 20000
	found := 0
	for range n {
		text := fmt.Sprintf("order %d of 2026-%02d-%02d for %d.%02d EUR, build %x, phone 0%d",
			r.Uint64N(1e12), 1+r.IntN(12), 1+r.IntN(28), r.IntN(1e6), r.IntN(100), r.Uint64(), r.Uint64N(1e10))
		found += len(Scan([]byte(text)))
	}
	t.Logf("%d of %d harmless lines match", found, n)
	if found > n/200 {
		t.Errorf("%d of %d harmless lines match", found, n)
	}
}

// TestCorpus compares with a labelled corpus, for the types that we cover.
func TestCorpus(t *testing.T) {
	raw, err := os.ReadFile("../../../shared/corpora/pii-small.json")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("needs the labelled corpus ../shared/corpora/pii-small.json beside the repository")
	}
	if err != nil {
		t.Fatal(err)
	}
	var samples []struct {
		Text  string `json:"full_text"`
		Spans []struct {
			Type  string `json:"entity_type"`
			Value string `json:"entity_value"`
		} `json:"spans"`
	}
	if err := json.Unmarshal(raw, &samples); err != nil {
		t.Fatal(err)
	}
	covered := map[string]string{"CREDIT_CARD": "payment_card", "US_SSN": "us_ssn", "EMAIL_ADDRESS": "email_address", "IBAN_CODE": "iban"}
	labelled, hit, found := map[string]int{}, map[string]int{}, map[string]int{}
	for _, s := range samples {
		var values []string
		for _, span := range s.Spans {
			if d := covered[span.Type]; d != "" {
				labelled[d]++
				values = append(values, d+":"+span.Value)
			}
		}
		for _, f := range Scan([]byte(s.Text)) {
			found[f.Detector]++
			if slices.Contains(values, f.Detector+":"+s.Text[f.Start:f.End]) {
				hit[f.Detector]++
			}
		}
	}
	if len(samples) < 50 || labelled["payment_card"] == 0 {
		t.Fatalf("the corpus holds %d samples and %v", len(samples), labelled)
	}
	for _, d := range covered {
		t.Logf("%-14s labelled %d, found %d, right %d", d, labelled[d], found[d], hit[d])
		if hit[d] != labelled[d] || found[d] != hit[d] {
			t.Errorf("%s: labelled %d, found %d, right %d", d, labelled[d], found[d], hit[d])
		}
	}
}

// TestNoTextIsSlow scans texts made to be slow, of two lengths. Eight times the
// text may take some 8 times as long; a quadratic scan would take 64 times.
func TestNoTextIsSlow(t *testing.T) {
	for _, unit := range []string{"eyJ-", "eyJ.", "sk-", "a@", "a.a@a.a", "1 ", "4-", "mrn ", "mrn-", "de1 ", "secret_key=", "-----BEGIN ", "ssn 123456789 ", "\u200b1", "m r n ", "sp_", "&#", "%3", "%34", "&#x0", "М", "①\n"} {
		short := []byte(strings.Repeat(unit, 64<<10/len(unit)))
		long := slices.Repeat(short, 8)
		for try := 1; ; try++ { // a busy machine is slow at times, not always
			a, b := fastest(short), fastest(long)
			if b <= 32*a+time.Millisecond {
				break
			}
			if try == 10 {
				t.Errorf("%q: %v for %d bytes, %v for %d", unit, a, len(short), b, len(long))
				break
			}
		}
	}
}

func fastest(text []byte) time.Duration {
	best := time.Hour
	for range 3 {
		start := time.Now()
		Scan(text)
		best = min(best, time.Since(start))
	}
	return best
}

func FuzzScan(f *testing.F) {
	f.Add("SSN 536-90-4399 mail a@b.org", "x")
	f.Add(`\u0034111 1111 1111 1111`, "é")
	f.Add("DE89 3704 0044 0532 0130 00 eyJaaaaaaaaaaaaaaaaaa.eyJbbbbbbbbbbbbbbbbbbb.cc", "MRN 12345")
	f.Fuzz(func(t *testing.T, a, b string) {
		last := -1
		for _, found := range Scan([]byte(a)) {
			if found.Start < last || found.Start >= found.End || found.End > len(a) {
				t.Fatalf("%q: bad offsets %+v", a, found)
			}
			last = found.Start
		}
		// More text can only add categories.
		more := scanAll(Scanner{}, "m|"+a, "m|"+b).Categories()
		for _, c := range scanAll(Scanner{}, "m|"+a).Categories() {
			if !slices.Contains(more, c) {
				t.Fatalf("%q lost %s when %q followed", a, c, b)
			}
		}
	})
}

// BenchmarkScan scans different prose, digits, and texts made to be slow.
func BenchmarkScan(b *testing.B) {
	r := rand.New(rand.NewPCG(5, 5))
	words := strings.Fields("the patient paid invoice 20391 on 2026-11-05 by card ending 4242 via jane@example.org and called 415 555 2671 about DE account sk-learn medical record secret")
	makers := map[string]func() string{
		"prose":   func() string { return words[r.IntN(len(words))] + " " },
		"unicode": func() string { return words[r.IntN(len(words))] + "é " },
		"digits":  func() string { return fmt.Sprint(r.IntN(1e9)) + " " },
		"ats":     func() string { return "a@" },
		"zeros":   func() string { return "1 " },
		"tokens":  func() string { return "eyJ-" },
		"keys":    func() string { return "sk-" },
		"letters": func() string { return "mrn" + string(rune('a'+r.IntN(26))) + "-" },
	}
	for _, name := range []string{"prose", "unicode", "digits", "ats", "zeros", "letters", "tokens", "keys"} {
		b.Run(name, func(b *testing.B) {
			var texts [][]byte
			for range 8 {
				var text strings.Builder
				for text.Len() < 64<<10 {
					text.WriteString(makers[name]())
				}
				texts = append(texts, []byte(text.String()))
			}
			b.SetBytes(64 << 10)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				Scan(texts[i%len(texts)])
			}
		})
	}
}
