package sink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// TLSConfig says whom to trust and who we are. The files are read at each
// connection, so that they can be replaced.
type TLSConfig struct {
	CAFile     string `yaml:"ca_file"`     // authorities of the receiver; empty: the system's
	CertFile   string `yaml:"cert_file"`   // ours, where the receiver asks for one
	KeyFile    string `yaml:"key_file"`    // its key
	ServerName string `yaml:"server_name"` // name to verify; empty: the host of the address
}

func (c *TLSConfig) paths() []*string { return []*string{&c.CAFile, &c.CertFile, &c.KeyFile} }

func (c *TLSConfig) check(p *problems) {
	p.file("tls.ca_file", c.CAFile)
	p.file("tls.cert_file", c.CertFile)
	p.file("tls.key_file", c.KeyFile)
	if (c.CertFile == "") != (c.KeyFile == "") {
		p.add("tls.cert_file", "a certificate and its key go together")
	}
}

// load makes a TLS configuration for a host.
func (c *TLSConfig) load(host string) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if t.ServerName == "" {
		t.ServerName = host
	}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read authorities: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("no certificate in %s", c.CAFile)
		}
	}
	if c.CertFile != "" {
		own, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read certificate: %w", err)
		}
		t.Certificates = []tls.Certificate{own}
	}
	return t, nil
}

// sendBuffer bounds what the kernel holds of what was written and not sent: of
// a lossy sink it is what is lost with a connection.
const sendBuffer = 256 << 10

// dial opens a verified connection.
func (c *TLSConfig) dial(ctx context.Context, address string) (*tls.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("address: %w", err)
	}
	config, err := c.load(host)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	raw, err := (&net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if t, ok := raw.(*net.TCPConn); ok {
		if err := t.SetWriteBuffer(sendBuffer); err != nil {
			return nil, errors.Join(fmt.Errorf("connect: %w", err), raw.Close())
		}
	}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("handshake: %w", err), raw.Close())
	}
	return conn, nil
}

// transport is an HTTP transport that verifies, with one connection pool of its
// own.
func (c *TLSConfig) transport() *http.Transport {
	return &http.Transport{
		DialTLSContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			conn, err := c.dial(ctx, address)
			if err != nil {
				return nil, err // a typed nil would be a connection
			}
			return conn, nil
		},
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		MaxIdleConnsPerHost:   4,
		IdleConnTimeout:       time.Minute,
		ResponseHeaderTimeout: time.Minute,
	}
}

// secret reads a secret from its file. Files are read at each use, so that
// they can be replaced.
func secret(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	s := strings.TrimSpace(string(b))
	if s == "" {
		return "", fmt.Errorf("read secret: %s is empty", path)
	}
	return s, nil
}
