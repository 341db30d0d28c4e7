package sink

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// relpPeer is a receiver that a test makes misbehave: serve gets each frame and
// answers what it will.
func relpPeer(t *testing.T, serve func(conn net.Conn, txnr, command string, data []byte) error) *RELPConfig {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				for {
					txnr, err1 := in.ReadString(' ')
					command, err2 := in.ReadString(' ')
					var n int
					_, err3 := fmt.Fscanf(in, "%d", &n)
					if errors.Join(err1, err2, err3) != nil {
						return
					}
					data := make([]byte, n+1)
					if n == 0 {
						data = data[:1]
					} else if sp, err := in.ReadByte(); err != nil || sp != ' ' {
						return
					}
					if _, err := io.ReadFull(in, data); err != nil || data[len(data)-1] != '\n' {
						return
					}
					if serve(conn, strings.TrimSpace(txnr), strings.TrimSpace(command), data[:len(data)-1]) != nil {
						return
					}
				}
			}()
		}
	}()
	return &RELPConfig{Address: l.Addr().String(), TLS: TLSConfig{CAFile: ca}, Window: 4}
}

func rsp(conn net.Conn, txnr, text string) error {
	_, err := fmt.Fprintf(conn, "%s rsp %d %s\n", txnr, len(text), text)
	return err
}

const welcome = "200 OK\nrelp_version=0\nrelp_software=test\ncommands=syslog"

func messages(n int) *Batch {
	b := &Batch{Origin: "o", Next: uint64(n)}
	for i := range n {
		b.Messages = append(b.Messages, Message{Index: uint64(i), Time: time.Unix(0, 0), Kind: "decision", ID: fmt.Sprint(i), Severity: 1, Body: fmt.Appendf(nil, `{"n":%d}`, i)})
	}
	return b
}

func sendRELP(t *testing.T, c *RELPConfig, n int) (int, error) {
	t.Helper()
	s, err := Open(t.Context(), &Config{RELP: c}, Options{Origin: "o"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	return s.Send(ctx, messages(n))
}

func TestRELPKeepsToItsWindowAndTakesAnswersInAnyOrder(t *testing.T) {
	most, open := 0, []string{}
	c := relpPeer(t, func(conn net.Conn, txnr, command string, _ []byte) error {
		switch command {
		case "open":
			return rsp(conn, txnr, welcome)
		case "close":
			return rsp(conn, txnr, "200 OK")
		}
		open = append(open, txnr)
		if most = max(most, len(open)); len(open) < 4 {
			return nil
		}
		for i := len(open) - 1; i >= 0; i-- { // the last first
			if err := rsp(conn, open[i], "200 OK"); err != nil {
				return err
			}
		}
		open = nil
		return nil
	})
	if taken, err := sendRELP(t, c, 40); taken != 40 || err != nil {
		t.Errorf("%d taken, %v", taken, err)
	}
	if most != 4 {
		t.Errorf("%d messages were open at once, the window is 4", most)
	}
}

func TestRELPCountsOnlyWhatWasAcknowledgedFromTheBeginningOn(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(conn net.Conn, txnr string) error // to messages; transaction 2 is the first
		taken  int
		want   string
	}{
		"the third is never answered": {func(conn net.Conn, txnr string) error {
			if txnr == "4" {
				return nil
			}
			return rsp(conn, txnr, "200 OK")
		}, 2, "deadline"},
		"the third is refused": {func(conn net.Conn, txnr string) error {
			if txnr == "4" {
				return rsp(conn, txnr, "500 no")
			}
			return rsp(conn, txnr, "200 OK")
		}, 2, "message 2 refused: 500 no"},
		"the connection is cut off": {func(conn net.Conn, txnr string) error {
			if txnr == "4" {
				return errors.New("cut")
			}
			return rsp(conn, txnr, "200 OK")
		}, 2, "relp: "}, // of which some acknowledgements may be lost with it
		"an answer is to nothing": {func(conn net.Conn, _ string) error { return rsp(conn, "999", "200 OK") }, 0, "not open"},
		"an answer is no frame":   {func(conn net.Conn, _ string) error { _, err := io.WriteString(conn, "hello\n"); return err }, 0, "deadline"},
		"the session is closed":   {func(conn net.Conn, _ string) error { _, err := io.WriteString(conn, "0 serverclose 0\n"); return err }, 0, "closes the session"},
		"an answer is too long": {func(conn net.Conn, txnr string) error {
			_, err := fmt.Fprintf(conn, "%s rsp 999999999 x", txnr)
			return err
		}, 0, "bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			peer := relpPeer(t, func(conn net.Conn, txnr, command string, _ []byte) error {
				if command == "open" {
					return rsp(conn, txnr, welcome)
				}
				return c.answer(conn, txnr)
			})
			taken, err := sendRELP(t, peer, 10)
			cut := strings.Contains(name, "cut off")
			if taken != c.taken && !(cut && taken < c.taken) || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%d taken, %v", taken, err)
			}
		})
	}
}

func TestRELPOpensOnlyWithAReceiverOfSyslog(t *testing.T) {
	for _, answer := range []string{"500 no", "200 OK\ncommands=other", "x"} {
		peer := relpPeer(t, func(conn net.Conn, txnr, _ string, _ []byte) error { return rsp(conn, txnr, answer) })
		if taken, err := sendRELP(t, peer, 1); taken != 0 || err == nil {
			t.Errorf("%q: %d taken, %v", answer, taken, err)
		}
	}
}

func FuzzRELPAnswersAreFramesOrErrors(f *testing.F) {
	for _, s := range []string{"1 rsp 6 200 OK\n", "0 serverclose 0\n", "2 rsp 0\n", "1 rsp 99999999999 x", "-1 rsp 1 2\n", "1 rsp 3 200", "1 syslog 1 x\n", "1 rsp 4 200 \n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := readRELP(bufio.NewReader(strings.NewReader(s)))
		if err == nil && (a.txnr < 0 || !strings.Contains(s, " rsp ")) {
			t.Errorf("%q is read as %+v", s, a)
		}
	})
}
