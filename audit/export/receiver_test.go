package export

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

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

// receiverProcess runs one in a process of its own.
func receiverProcess(b testing.TB, kind string) (address string) {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), receiverVar+"="+kind)
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
	return strings.TrimSpace(line)
}
