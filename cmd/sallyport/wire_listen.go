package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/sallyport-ai/sallyport/identity/workload"
)

// listen binds the listeners, so that their addresses are known before run.
func (p *gatewayProcess) listen(cfg gatewayConfig, source *workload.Source, metrics http.Handler) error {
	certificate, err := workload.FileCertificate(cfg.Listen.CertFile, cfg.Listen.KeyFile)
	if err != nil {
		return err
	}
	tlsConfig := &tls.Config{GetCertificate: certificate, MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true}
	var admit workload.Authorizer
	if cfg.Listen.ClientSVID {
		if admit, err = callers(source.TrustDomain(), cfg.Identity.Federation); err != nil {
			return err
		}
	}
	switch {
	case cfg.Listen.ClientSVID && cfg.Listen.ClientBinding:
		tlsConfig = workload.AnyClientConfig(certificate, source, admit)
	case cfg.Listen.ClientSVID:
		tlsConfig = workload.OptionalClientConfig(certificate, source, admit)
	case cfg.Listen.ClientBinding:
		tlsConfig = workload.AnyClientConfig(certificate, nil, nil)
	}
	tlsConfig.NextProtos = []string{"h2", "http/1.1"}
	tcp, err := net.Listen("tcp", cfg.Listen.Address)
	if err != nil {
		return fmt.Errorf("public listener: %w", err)
	}
	p.public = tls.NewListener(tcp, tlsConfig)
	p.onClose(p.public.Close)
	headerBytes := int(cfg.Limits.HeaderBytes)
	if headerBytes == 0 {
		headerBytes = 64 << 10
	}
	p.servers = append(p.servers, &http.Server{
		Handler: p.gateway.Handler(), MaxHeaderBytes: headerBytes, DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 60 * time.Second, IdleTimeout: 120 * time.Second,
		ErrorLog: slog.NewLogLogger(p.logger.Handler(), slog.LevelDebug),
	})
	if cfg.Admin.Address == "" {
		return nil
	}
	if p.admin, err = net.Listen("tcp", cfg.Admin.Address); err != nil {
		return fmt.Errorf("admin listener: %w", err)
	}
	p.onClose(p.admin.Close)
	p.servers = append(p.servers, &http.Server{Handler: p.gateway.Admin(metrics), ReadHeaderTimeout: 10 * time.Second})
	return nil
}
