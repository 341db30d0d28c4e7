package export

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// receiverVar makes this test binary a receiver and no test: benchmarks count
// the time that the exporter computes, and not that of what it sends to.
const receiverVar = "SALLYPORT_TEST_RECEIVER"

func TestMain(m *testing.M) {
	kind := os.Getenv(receiverVar)
	if kind == "" {
		os.Exit(m.Run())
	}
	address, err := receive(kind)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(address)
	_, _ = io.Copy(io.Discard, os.Stdin) // until who started it has ended
}

// receive starts a receiver that takes everything as fast as it can be sent.
func receive(kind string) (address string, err error) {
	switch kind {
	case "kafka":
		k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "audit"))
		if err != nil {
			return "", err
		}
		return k.ListenAddrs()[0], nil
	case "relp":
		return listen(acknowledge)
	case "syslog":
		return listen(func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	case "hec":
		return taking(`{"text":"Success","code":0}`), nil
	default: // otlp, an empty message; s3, none
		return taking(""), nil
	}
}

// taking serves HTTP that reads each body and gives the same answer.
func taking(answer string) string {
	return httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		buf := make([]byte, 64<<10)
		for {
			if _, err := r.Body.Read(buf); err != nil {
				break
			}
		}
		_, _ = io.WriteString(rw, answer)
	})).URL
}

// certsVar is the directory of the certificate of a receiver that has one.
const certsVar = "SALLYPORT_TEST_CERTS"

// listen serves TLS connections.
func listen(serve func(net.Conn)) (address string, err error) {
	dir := os.Getenv(certsVar)
	own, err := tls.LoadX509KeyPair(filepath.Join(dir, "server.pem"), filepath.Join(dir, "server.key"))
	if err != nil {
		return "", err
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS13})
	if err != nil {
		return "", err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return l.Addr().String(), nil
}

// acknowledge answers each frame of RELP, and sends the answers when no more
// frames are there.
func acknowledge(conn net.Conn) {
	defer conn.Close()
	in, out := bufio.NewReaderSize(conn, 64<<10), bufio.NewWriter(conn)
	for {
		var txnr, n int
		var command string
		if _, err := fmt.Fscanf(in, "%d %s %d", &txnr, &command, &n); err != nil {
			return
		}
		if n > 0 {
			n++ // the space before the data
		}
		if _, err := in.Discard(n + 1); err != nil {
			return
		}
		text := "200 OK"
		if command == "open" {
			text += "\nrelp_version=0\ncommands=syslog"
		}
		fmt.Fprintf(out, "%d rsp %d %s\n", txnr, len(text), text)
		if in.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return
			}
		}
	}
}

// receiverProcess runs one in a process of its own.
func receiverProcess(b *testing.B, kind, certs string) (address string, pid int) {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), receiverVar+"="+kind, certsVar+"="+certs)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close() // ends it
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(line), cmd.Process.Pid
}

// cpuOf is what a process has computed, as the kernel tells in hundredths of a
// second; 0 where it does not.
func cpuOf(pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in brackets, may hold anything. The 14th and 15th fields are
	// user and system time.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	if err1 != nil || err2 != nil {
		return 0
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}
