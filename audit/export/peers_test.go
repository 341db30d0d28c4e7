package export

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/sallyport-ai/sallyport/audit/export/sink"
)

// authority issues certificates into files.
type authority struct {
	t      testing.TB
	dir    string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	caFile string
}

func newAuthority(t testing.TB) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.issue("ca", &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	})
	a.caFile = filepath.Join(a.dir, "ca.pem")
	return a
}

func (a *authority) issue(name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	fail := func(err error) {
		if err != nil {
			a.t.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fail(err)
	template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62))
	fail(err)
	template.Subject = pkix.Name{CommonName: name}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	fail(err)
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	fail(err)
	fail(os.WriteFile(filepath.Join(a.dir, name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	fail(os.WriteFile(filepath.Join(a.dir, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600))
	cert, err := x509.ParseCertificate(der)
	fail(err)
	return cert, key
}

// leaf issues a certificate for a name and for loopback.
func (a *authority) leaf(name string) {
	a.issue(name, &x509.Certificate{
		DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

// client is how a sink proves itself with a certificate.
func (a *authority) client(name string) sink.TLSConfig {
	return sink.TLSConfig{CAFile: a.caFile, CertFile: filepath.Join(a.dir, name+".pem"), KeyFile: filepath.Join(a.dir, name+".key")}
}

// freePort is one that nobody listens on.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// rsyslog is a real one, with a TLS and a RELP listener, that writes what it
// gets to a file before it says that it has it.
type rsyslog struct {
	t         testing.TB
	dir       string
	bin       string
	out       string
	tcp, relp int
	cmd       *exec.Cmd
}

const rsyslogConf = `
global(workDirectory=%[1]q maxMessageSize="64k" DefaultNetstreamDriver="ossl"
  DefaultNetstreamDriverCAFile="%[2]s/ca.pem" DefaultNetstreamDriverCertFile="%[2]s/server.pem" DefaultNetstreamDriverKeyFile="%[2]s/server.key")
main_queue(queue.type="Direct")
module(load="imtcp" StreamDriver.Name="ossl" StreamDriver.Mode="1" StreamDriver.AuthMode="x509/name" PermittedPeer=["client.lab"])
module(load="imrelp" tls.tlslib="openssl")
input(type="imtcp" port="%[3]d" address="127.0.0.1")
input(type="imrelp" port="%[4]d" address="127.0.0.1" maxDataSize="64k" tls="on" tls.authMode="name" tls.permittedPeer=["client.lab"]
  tls.caCert="%[2]s/ca.pem" tls.myCert="%[2]s/server.pem" tls.myPrivKey="%[2]s/server.key")
template(name="whole" type="string" string="%%pri%% %%timestamp:::date-rfc3339%% %%hostname%% %%app-name%% %%msgid%% %%structured-data%% %%msg%%\n")
*.* action(type="omfile" file=%[5]q template="whole")
`

func newRsyslog(t testing.TB, a *authority) *rsyslog {
	t.Helper()
	bin, err := exec.LookPath("rsyslogd")
	if err != nil {
		t.Skip("no rsyslogd")
	}
	for _, module := range []string{"imrelp.so", "lmnsd_ossl.so"} {
		found, _ := filepath.Glob("/usr/lib/*/rsyslog/" + module)
		if len(found) == 0 {
			t.Skip("rsyslogd has no ", module)
		}
	}
	r := &rsyslog{t: t, dir: t.TempDir(), bin: bin, tcp: freePort(t), relp: freePort(t)}
	r.out = filepath.Join(r.dir, "out")
	conf := fmt.Sprintf(rsyslogConf, r.dir, a.dir, r.tcp, r.relp, r.out)
	if err := os.WriteFile(filepath.Join(r.dir, "rs.conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.kill)
	return r
}

// start starts it and waits until it listens.
func (r *rsyslog) start() {
	r.t.Helper()
	r.cmd = exec.Command(r.bin, "-n", "-f", filepath.Join(r.dir, "rs.conf"), "-i", filepath.Join(r.dir, "pid"))
	r.cmd.Dir = r.dir
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	for _, port := range []int{r.tcp, r.relp} {
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

// kill ends it at once: what it holds in memory is gone.
func (r *rsyslog) kill() {
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

func newPEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func writeFile(path, text string) error { return os.WriteFile(path, []byte(text), 0o600) }

// trusting is a transport that trusts the authority alone.
func (a *authority) trusting() *http.Transport {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
}
