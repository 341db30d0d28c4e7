package tlog

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	fnote "github.com/transparency-dev/formats/note"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/mod/sumdb/note"
)

// litewitness runs the witness of https://github.com/FiloSottile/torchwood for
// one log, and returns how to reach it. It is looked for where .ci/run puts it.
func litewitness(t *testing.T, name string, log *Key) Witness {
	t.Helper()
	program, err := exec.LookPath("litewitness")
	if err != nil {
		home, _ := os.UserHomeDir()
		program = filepath.Join(home, ".cache", "sallyport-ci", "litewitness")
		if tools := os.Getenv("SALLYPORT_CI_TOOLS"); tools != "" {
			program = filepath.Join(tools, "litewitness")
		}
	}
	if _, err := os.Stat(program); err != nil {
		t.Skip("no litewitness: go install filippo.io/torchwood/cmd/litewitness@v0.7.0")
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 to fill the witness's database")
	}
	dir, err := os.MkdirTemp("", "witness") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serveAgent(t, filepath.Join(dir, "agent"), private)
	registerLog(t, python, filepath.Join(dir, "db"), log)
	sshKey, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	cmd := exec.Command(program, "-name", name, "-db", filepath.Join(dir, "db"), "-ssh-agent", filepath.Join(dir, "agent"),
		"-listen", address, "-key", ssh.FingerprintSHA256(sshKey))
	out := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	})
	await(t, "witness that answers", func() bool {
		resp, err := http.Get("http://" + address + "/")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	})
	return Witness{URL: "http://" + address, Key: cosignerKey(t, name, public), Operator: name}
}

// cosignerKey is the verifier key of a witness with that Ed25519 key.
func cosignerKey(t *testing.T, name string, public ed25519.PublicKey) string {
	t.Helper()
	vkey, err := note.NewEd25519VerifierKey(name, public)
	if err == nil {
		vkey, err = fnote.VKeyToCosignatureV1(vkey)
	}
	if err != nil {
		t.Fatal(err)
	}
	return vkey
}

// registerLog makes the rows that the witness's own tool would.
func registerLog(t *testing.T, python, db string, log *Key) {
	t.Helper()
	const script = `
import base64, hashlib, sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("CREATE TABLE IF NOT EXISTS log (origin TEXT PRIMARY KEY, tree_size INTEGER NOT NULL, tree_hash TEXT NOT NULL)")
db.execute("CREATE TABLE IF NOT EXISTS key (origin TEXT NOT NULL, key TEXT NOT NULL, FOREIGN KEY(origin) REFERENCES log(origin))")
db.execute("INSERT INTO log VALUES (?, 0, ?)", (sys.argv[2], base64.b64encode(hashlib.sha256().digest()).decode()))
db.execute("INSERT INTO key VALUES (?, ?)", (sys.argv[2], sys.argv[3]))
db.commit()
`
	if out, err := exec.Command(python, "-c", script, db, log.Name(), log.VerifierKey()).CombinedOutput(); err != nil {
		t.Fatalf("register the log: %v\n%s", err, out)
	}
}

// serveAgent serves one key as an ssh-agent does.
func serveAgent(t *testing.T, socket string, key ed25519.PrivateKey) {
	t.Helper()
	ring := agent.NewKeyring()
	if err := ring.Add(agent.AddedKey{PrivateKey: key}); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go agent.ServeAgent(ring, conn)
		}
	}()
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestARealWitnessAnchorsTheLogAndRefusesWhatDoesNotExtendIt(t *testing.T) {
	cfg := witnessed(t, 1)
	w := litewitness(t, "witness.example/lite", cfg.Key)
	cfg.Witnesses.List = []Witness{w}
	if err := cfg.Witnesses.Check(); err != nil {
		t.Fatal(err)
	}
	// Over restarts, and with consistency proofs across tiles.
	for range 3 {
		l := mustOpen(t, cfg)
		for i := range 150 {
			mustAppend(t, l, decision(i))
		}
		await(t, "anchor", func() bool { return l.Anchors().Records == 0 })
		mustClose(t, l)
	}
	report, err := Verify(cfg.Dir, cfg.Key.Verifier(), VerifyOptions{Witnesses: cfg.Witnesses})
	if err != nil || !report.OK() || report.Anchored != report.TreeSize || report.TreeSize < 450 {
		t.Fatalf("Verify = %+v, %v", report, err)
	}
	proof, err := Prove(cfg.Dir, 5)
	if err != nil || !strings.Contains(string(proof), "— "+w.Operator+" ") {
		t.Errorf("proof without the witness: %v\n%s", err, proof)
	}

	whole := filepath.Join(t.TempDir(), "whole")
	if err := os.CopyFS(whole, os.DirFS(cfg.Dir)); err != nil {
		t.Fatal(err)
	}
	refused := func(what string) {
		t.Helper()
		var refusal *Refusal
		if l, err := Open(cfg); !errors.As(err, &refusal) {
			t.Errorf("a log %s: Open = %v", what, err)
			if l != nil {
				mustClose(t, l)
			}
		}
	}
	remove(t, cfg.Dir, checkpointFile)
	cutLastBatch(t, cfg.Dir)
	refused("that was cut back")
	remove(t, cfg.Dir, "")
	refused("that was wiped")

	// Another log of the same name, further on than the first: only its proof
	// shows that.
	alone := cfg
	alone.Witnesses = Witnesses{}
	l := mustOpen(t, alone)
	for i := range 900 {
		mustAppend(t, l, decision(i))
	}
	mustClose(t, l)
	l, err = Open(cfg)
	if err != nil {
		t.Fatalf("a longer fork is not known for one before it is proven: %v", err)
	}
	await(t, "halt", func() bool { return errors.Is(l.Err(), ErrRefused) })
	if g := gaps(t, cfg.Dir); len(g) != 1 || g[0].Held != report.TreeSize {
		t.Errorf("evidence is %+v", g)
	}
	l.Close()

	// The true one goes on.
	remove(t, cfg.Dir, "")
	if err := os.CopyFS(cfg.Dir, os.DirFS(whole)); err != nil {
		t.Fatal(err)
	}
	l = mustOpen(t, cfg)
	await(t, "anchor", func() bool { return l.Anchors().Records == 0 })
	mustClose(t, l)
}
