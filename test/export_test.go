package test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit/export/exporttest"
	"github.com/sallyport-ai/sallyport/audit/export/format"
	"github.com/sallyport-ai/sallyport/audit/tlog"
	"github.com/sallyport-ai/sallyport/audit/tlog/tlogtest"
)

// exportKills is how often a gateway is killed while it exports.
const (
	exportKills      = 8
	shortExportKills = 4
)

// outlet is one sink of a gateway, and what has come out of it.
type outlet struct {
	name, config string
	exact        bool            // nothing comes twice
	got          func() []uint64 // indexes, as they came
}

// newOutlets are sinks to receivers that know when they have something. Those
// that are not installed here are left out, and that is said.
func newOutlets(t *testing.T, dir string) (all []*outlet, rs *exporttest.Rsyslog) {
	t.Helper()
	a := exporttest.NewAuthority(t)
	for _, name := range []string{"server", "client.lab"} {
		a.Leaf(name)
	}
	tls := fmt.Sprintf("{ca_file: %q, cert_file: %q, key_file: %q}", a.CAFile, filepath.Join(a.Dir, "client.lab.pem"), filepath.Join(a.Dir, "client.lab.key"))
	path := filepath.Join(dir, "out.jsonl")
	all = append(all, &outlet{name: "file", config: fmt.Sprintf("{file: {path: %q}}", path), got: func() []uint64 { return indexesIn(t, path) }})
	k := exporttest.NewKafka(t, a)
	all = append(all, &outlet{
		name: "kafka",
		config: fmt.Sprintf("{kafka: {brokers: [%q], topic: %s, username: %s, password_file: %q, tls: %s}}",
			k.Config.Brokers[0], k.Config.Topic, k.Config.Username, k.Config.PasswordFile, tls),
		got: func() (indexes []uint64) {
			for _, m := range k.Held() {
				if m.Header["kind"] == "anchor" {
					continue
				}
				i, err := strconv.ParseUint(m.Header["index"], 10, 64)
				if err != nil {
					t.Error(err)
				}
				indexes = append(indexes, i)
			}
			return indexes
		},
	})
	if _, err := exec.LookPath("rsyslogd"); err == nil {
		rs = exporttest.NewRsyslog(t, a, exporttest.GnuTLS)
		rs.Start()
		all = append(all, &outlet{
			name: "relp", config: fmt.Sprintf("{relp: {address: \"127.0.0.1:%d\", tls: %s}}", rs.RELP, tls),
			got: func() []uint64 { got, _ := rs.Got(); return got },
		})
	} else {
		t.Log("left out: relp, for want of rsyslogd")
	}
	if _, err := exec.LookPath("versitygw"); err == nil {
		s := exporttest.NewStore(t, a)
		all = append(all, &outlet{
			name: "s3", exact: true,
			config: fmt.Sprintf("{s3: {url: %q, bucket: %s, prefix: log/, credentials_file: %q, lock: compliance, retain: 1h, wait: 200ms, tls: %s}}",
				s.Config.URL, exporttest.Bucket, s.Config.CredentialsFile, tls),
			got: func() (indexes []uint64) {
				_, lines := s.Objects()
				for _, l := range lines {
					indexes = append(indexes, indexOf(t, []byte(l)))
				}
				return indexes
			},
		})
	} else {
		t.Log("left out: s3, for want of versitygw")
	}
	return all, rs
}

var sequence = regexp.MustCompile(`^\{"v":1,.*?"log":\{"origin":"[^"]*","seq":(\d+),`)

func indexOf(t *testing.T, leaf []byte) uint64 {
	t.Helper()
	m := sequence.FindSubmatch(leaf)
	if m == nil {
		t.Fatalf("no record: %.200s", leaf)
	}
	i, err := strconv.ParseUint(string(m[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// indexesIn are those of the records in a file of a sink. A last line that is cut
// short does not count.
func indexesIn(t *testing.T, path string) (indexes []uint64) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		return nil // it is made with the first batch
	}
	for l := range bytes.Lines(text) {
		if bytes.HasSuffix(l, []byte("\n")) && !bytes.Contains(l, []byte(`"kind":"anchor"`)) {
			indexes = append(indexes, indexOf(t, l))
		}
	}
	return indexes
}

// exporting lets a gateway export to these.
func (w *world) exporting(t *testing.T, outlets ...*outlet) {
	t.Helper()
	var sinks []string
	for _, o := range outlets {
		sinks = append(sinks, fmt.Sprintf("{name: %s, limit: 60000, to: %s}", o.name, o.config))
	}
	config := regexp.MustCompile(`segment: 1MiB.*`).ReplaceAllString(readFile(t, w.config), "segment: 1MiB, export: ["+strings.Join(sinks, ", ")+"]}")
	w.config = writeFile(t, w.config, config)
}

// came judges what came out of a sink: all that the log holds below size, and
// nothing before what is before it.
func (o *outlet) came(t *testing.T, size uint64) (all, again int) {
	t.Helper()
	got := o.got()
	seen := make(map[uint64]bool)
	next := uint64(0)
	for n, i := range got {
		if i > next {
			t.Fatalf("%s: at %d, record %d came before %d", o.name, n, i, next)
		}
		next = max(next, i+1)
		if seen[i] {
			again++
		}
		seen[i] = true
	}
	if next < size {
		t.Errorf("%s: %d records of %d came", o.name, next, size)
	}
	if o.exact && again > 0 {
		t.Errorf("%s: %d records came twice", o.name, again)
	}
	return len(got), again
}

// harms are what is done to a cursor between two runs. older is what it was some
// runs before.
var harms = []struct {
	name string
	do   func(t *testing.T, file string, now, older []byte)
}{
	{"cut short", func(t *testing.T, file string, now, _ []byte) { writeFile(t, file, string(now[:len(now)/2])) }},
	{"rolled back", func(t *testing.T, file string, _, older []byte) {
		if older != nil {
			writeFile(t, file, string(older))
		}
	}},
	{"removed", func(t *testing.T, file string, _, _ []byte) {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}},
	{"left alone", func(*testing.T, string, []byte, []byte) {}},
}

// awaitChange waits until a file is there and is not what it was.
func awaitChange(t *testing.T, file string, was []byte) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if now, err := os.ReadFile(file); err == nil && json.Valid(now) && !bytes.Equal(now, was) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s is not saved", filepath.Base(file))
		}
	}
}

// TestAGatewayThatIsKilledWhileItExportsLosesNothing kills a real gateway under
// load, with real receivers, at random: in the middle of a batch, between its
// acknowledgement and the saving of the cursor, and while a receiver is gone. The
// cursors of two sinks are cut short, rolled back and removed on the way.
func TestAGatewayThatIsKilledWhileItExportsLosesNothing(t *testing.T) {
	w := newWorld(t)
	outlets, rs := newOutlets(t, w.dir)
	w.exporting(t, outlets...)
	l := w.newLoad(t)
	stopLoad := l.run(t)
	rounds := exportKills
	if testing.Short() {
		rounds = shortExportKills
	}
	cursor := func(name string) string { return filepath.Join(w.logDir, "export", name+".json") }
	older := make(map[string][]byte)
	spoiled, did := []string{"file", "kafka"}, make(map[string]int)
	for round := range rounds {
		gateway, url := w.serve(t)
		l.turnTo(t, url)
		if rs != nil && round%5 == 3 {
			rs.Kill()
		}
		time.Sleep(rand.N(700 * time.Millisecond))
		if round%2 == 1 { // cursors are saved each second
			for _, name := range spoiled {
				awaitChange(t, cursor(name), older[name])
			}
		}
		gateway.kill()
		if rs != nil && round%5 == 3 {
			rs.Start()
		}
		for i, name := range spoiled {
			text, err := os.ReadFile(cursor(name))
			if round%2 == 0 || err != nil {
				continue // none has been saved, perhaps
			}
			harm := harms[(round/2+i)%len(harms)]
			harm.do(t, cursor(name), text, older[name])
			did[harm.name]++
			older[name] = text
		}
	}
	last, url := w.serve(t)
	l.turnTo(t, url)
	stopLoad()
	size := uint64(len(tlogtest.Records(t, w.logDir, 0)))
	for _, o := range outlets {
		awaitOutlet(t, o, size)
	}
	last.stop(t)
	again := 0
	for _, o := range outlets {
		all, twice := o.came(t, size)
		again += twice
		t.Logf("%s: %d records came of %d, %d of them again", o.name, all, size, twice)
	}
	t.Logf("%d kills; cursors: %v", rounds, did)
	if len(did) < min(len(harms), rounds/2) {
		t.Errorf("cursors: only %v", did)
	}
	if again == 0 || size < uint64(4*rounds) {
		t.Errorf("the kills hit nothing: %d records, %d came again", size, again)
	}
	if _, code := sallyport(t, "audit", "verify", w.logDir, "--key", w.logKey); code != 0 {
		t.Errorf("audit verify: exit %d", code)
	}
}

func awaitOutlet(t *testing.T, o *outlet, size uint64) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		seen := make(map[uint64]bool)
		for _, i := range o.got() {
			if i < size {
				seen[i] = true
			}
		}
		if uint64(len(seen)) == size {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %d records of %d came", o.name, len(seen), size)
		}
	}
}

// Somebody who can write a cursor can make a sink pass records over. The log does
// not know better, but whoever keeps the anchors sees which are missing.
func TestWhatACursorThatWasMovedForwardPassesOverShowsInTheAnchors(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(w.dir, "out.jsonl")
	o := &outlet{name: "file", config: fmt.Sprintf("{file: {path: %q}}", path), got: func() []uint64 { return indexesIn(t, path) }}
	w.exporting(t, o)
	client, token := w.client(t, nil), w.token(t, "alice@acme.example", "acme")
	serve := func(awaited bool) {
		gateway, url := w.serve(t)
		for range 3 {
			awaitOK(t, client, url, token)
		}
		if awaited {
			awaitOutlet(t, &outlet{name: o.name, got: func() (after []uint64) {
				return o.got()[:min(len(o.got()), 3)] // something came, and its anchor
			}}, 3)
		}
		gateway.stop(t)
	}
	serve(true)
	w.exporting(t) // to nobody, while more is written
	serve(false)
	w.exporting(t, o)

	file := filepath.Join(w.logDir, "export", "file.json")
	var cursor map[string]any
	if err := json.Unmarshal([]byte(readFile(t, file)), &cursor); err != nil {
		t.Fatal(err)
	}
	const passed = 3
	next := uint64(cursor["next"].(float64))
	for e, err := range tlog.Read(w.logDir, next+passed-1) {
		if err != nil {
			t.Fatal(err)
		}
		cursor["next"], cursor["last"] = next+passed, format.Link{Index: e.Index, Hash: format.LeafHash(e.Leaf)}
		break
	}
	text, err := json.Marshal(cursor)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, file, string(text))
	before := len(o.got())
	gateway, url := w.serve(t)
	awaitOK(t, client, url, token)
	for end := time.Now().Add(20 * time.Second); len(o.got()) == before; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing more came")
		}
	}
	gateway.stop(t)

	var missing uint64
	due := uint64(0)
	lines := bufio.NewScanner(strings.NewReader(readFile(t, path)))
	for lines.Buffer(nil, 1<<20); lines.Scan(); {
		var anchor struct {
			Kind        string
			First, Next uint64
		}
		if err := json.Unmarshal(lines.Bytes(), &anchor); err != nil {
			t.Fatal(err)
		}
		if anchor.Kind != "anchor" {
			continue
		}
		if anchor.First > due {
			missing += anchor.First - due
		}
		due = max(due, anchor.Next)
	}
	if missing != passed {
		t.Errorf("the anchors lack %d records, where %d were passed over", missing, passed)
	}
}
