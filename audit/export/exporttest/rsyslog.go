package exporttest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// Rsyslog is a real one, with a TLS and a RELP listener, that writes what it
// gets to a file before it says that it has it.
type Rsyslog struct {
	t         testing.TB
	dir       string
	bin       string
	Out       string // where it writes
	TCP, RELP int    // ports
	cmd       *exec.Cmd
}

const rsyslogConf = `
global(workDirectory=%[1]q maxMessageSize="64k" DefaultNetstreamDriver=%[6]q
  DefaultNetstreamDriverCAFile="%[2]s/ca.pem" DefaultNetstreamDriverCertFile="%[2]s/server.pem" DefaultNetstreamDriverKeyFile="%[2]s/server.key")
main_queue(queue.type="Direct")
module(load="imtcp" StreamDriver.Name=%[6]q StreamDriver.Mode="1" StreamDriver.AuthMode="x509/name" PermittedPeer=["client.lab"])
module(load="imrelp" tls.tlslib="openssl")
input(type="imtcp" port="%[3]d" address="127.0.0.1")
input(type="imrelp" port="%[4]d" address="127.0.0.1" maxDataSize="64k" tls="on" tls.authMode="name" tls.permittedPeer=["client.lab"]
  tls.caCert="%[2]s/ca.pem" tls.myCert="%[2]s/server.pem" tls.myPrivKey="%[2]s/server.key")
template(name="whole" type="string" string="%%pri%% %%timestamp:::date-rfc3339%% %%hostname%% %%app-name%% %%msgid%% %%structured-data%% %%msg%%\n")
*.* action(type="omfile" file=%[5]q template="whole")
`

// Driver is an rsyslog's implementation of TLS.
type Driver string

// The drivers that there are.
const (
	OpenSSL Driver = "ossl"
	GnuTLS  Driver = "gtls"
)

// NewRsyslog configures one that lets in client.lab alone; the authority must
// have issued server. It skips the test where there is none.
//
// The driver is whose TLS its syslog listener has: OpenSSL or GnuTLS. With
// OpenSSL's it often lets in whoever has any certificate of the authority: a read
// may complete the handshake, and then nothing looks at the name. See
// https://github.com/rsyslog/rsyslog/issues/6350.
func NewRsyslog(t testing.TB, a *Authority, driver Driver) *Rsyslog {
	t.Helper()
	bin, err := exec.LookPath("rsyslogd")
	if err != nil {
		t.Skip("no rsyslogd")
	}
	for _, module := range []string{"imrelp.so", "lmnsd_" + string(driver) + ".so"} {
		found, _ := filepath.Glob("/usr/lib/*/rsyslog/" + module)
		if len(found) == 0 {
			t.Skip("rsyslogd has no ", module)
		}
	}
	r := &Rsyslog{t: t, dir: t.TempDir(), bin: bin, TCP: FreePort(t), RELP: FreePort(t)}
	r.Out = filepath.Join(r.dir, "out")
	conf := fmt.Sprintf(rsyslogConf, r.dir, a.Dir, r.TCP, r.RELP, r.Out, driver)
	if err := os.WriteFile(filepath.Join(r.dir, "rs.conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	return r
}

// Start starts it and waits until it listens.
func (r *Rsyslog) Start() {
	r.t.Helper()
	r.cmd = exec.Command(r.bin, "-n", "-f", filepath.Join(r.dir, "rs.conf"), "-i", filepath.Join(r.dir, "pid"))
	r.cmd.Dir = r.dir
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	for _, port := range []int{r.TCP, r.RELP} {
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
			if err == nil {
				_ = conn.Close()
				break
			}
			if time.Now().After(end) {
				r.t.Fatal("rsyslogd does not listen")
			}
		}
	}
}

// Kill ends it at once: what it holds in memory is gone.
func (r *Rsyslog) Kill() {
	if r.cmd == nil {
		return
	}
	if err := r.cmd.Process.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		r.t.Error(err)
	}
	_ = r.cmd.Wait() // says that it was killed
	r.cmd = nil
	if err := os.Remove(filepath.Join(r.dir, "pid")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.t.Error(err)
	}
}

var recordLine = regexp.MustCompile(` index="(\d+)"( replayed="true")?\] +\{"v":1,`)

// Got returns the indexes of the records that rsyslog has written, in order,
// and how many of them were marked as repetitions.
func (r *Rsyslog) Got() (indexes []uint64, marked int) {
	b, err := os.ReadFile(r.Out)
	if err != nil {
		return nil, 0
	}
	for l := range bytes.Lines(b) {
		m := recordLine.FindSubmatch(l)
		if m == nil || l[len(l)-1] != '\n' {
			continue // an anchor, or cut off when it was killed
		}
		i, err := strconv.ParseUint(string(m[1]), 10, 64)
		if err != nil {
			r.t.Error(err)
		}
		indexes = append(indexes, i)
		if len(m[2]) > 0 {
			marked++
		}
	}
	return indexes, marked
}

// PID is that of its process.
func (r *Rsyslog) PID() int { return r.cmd.Process.Pid }
