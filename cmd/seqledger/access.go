package main

import (
	"crypto/tls"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/seqledger/seqledger/server"
	"github.com/seqledger/seqledger/server/auth"
)

// accessFlags are the flags of serve that say who may connect, and how.
type accessFlags struct {
	Auth        string   `help:"YAML file with API keys and their permissions; see seqledger auth." type:"path" placeholder:"FILE"`
	TLSCert     string   `name:"tls-cert" help:"Certificate of the server (PEM), with its intermediates." type:"path" placeholder:"FILE"`
	TLSKey      string   `name:"tls-key" help:"Private key of --tls-cert." type:"path" placeholder:"FILE"`
	TLSClientCA string   `name:"tls-client-ca" help:"Require a client certificate signed by one of these authorities, in addition to a credential." type:"path" placeholder:"FILE"`
	CORSOrigin  []string `name:"cors-origin" help:"Allow browsers to call from pages of this origin, such as https://app.example.com; repeatable." placeholder:"ORIGIN"`
	Insecure    bool     `help:"Allow connections from other machines without TLS or --auth. Restrict them by other means."`
}

// access is the result of these flags.
type access struct {
	auth  *auth.Authority // nil: no authentication
	tls   *tls.Config     // nil: cleartext
	close func()
}

// access reads the files and refuses a configuration that would open the server to strangers.
// The errors are usage errors.
func (f *accessFlags) access(e *environment, listen string) (*access, error) {
	if err := f.check(e, listen); err != nil {
		return nil, err
	}
	a := &access{close: func() {}}
	var err error
	if a.tls, err = f.tls(e); err != nil {
		return nil, err
	}
	if f.Auth == "" {
		return a, nil
	}
	if a.auth, err = auth.Open(f.Auth, auth.Options{Logger: e.log}); err != nil {
		return nil, authFileError(fmt.Errorf("--auth: %w", err))
	}
	a.close = reloadOnSignal(func() { _ = a.auth.Reload() })
	return a, nil
}

// tls reads the TLS files and returns nil if there are none. It checks them before the server
// does, because the server does not know the flags that name them.
func (f *accessFlags) tls(e *environment) (*tls.Config, error) {
	if f.TLSCert == "" {
		return nil, nil
	}
	if _, err := keyPair(f.TLSCert, f.TLSKey); err != nil {
		return nil, err
	}
	if f.TLSClientCA != "" {
		if _, err := certificatePool("--tls-client-ca", f.TLSClientCA); err != nil {
			return nil, err
		}
	}
	config, err := server.LoadTLS(server.TLSFiles{Cert: f.TLSCert, Key: f.TLSKey, ClientCA: f.TLSClientCA}, e.log)
	if err != nil {
		return nil, usage("--tls-cert, --tls-key, --tls-client-ca: %w", err)
	}
	return config, nil
}

// check validates the flags without reading files.
func (f *accessFlags) check(e *environment, listen string) error {
	host, err := checkListen("--listen", listen)
	if err != nil {
		return err
	}
	origins := server.ValidateOrigins(f.CORSOrigin, f.Auth != "")
	switch {
	case (f.TLSCert == "") != (f.TLSKey == ""):
		return usage("--tls-cert and --tls-key belong together")
	case origins != nil:
		return usage("--cors-origin: %s", strings.TrimPrefix(origins.Error(), "server: "))
	case f.TLSClientCA != "" && f.TLSCert == "":
		return usage("--tls-client-ca needs --tls-cert and --tls-key")
	case loopbackName(host):
		return nil
	}
	noAuth, noTLS := f.Auth == "", f.TLSCert == ""
	switch {
	case noAuth && !f.Insecure:
		return fail(exitUsage, "give --auth, listen on 127.0.0.1 or [::1], or accept the risk with --insecure",
			"--listen %s: is not a loopback address, and there is no authentication: anyone who can connect could "+
				"write", listen)
	case noTLS && !f.Insecure:
		return fail(exitUsage,
			"give --tls-cert and --tls-key, or let a proxy on this machine do TLS; on a trusted network give "+
				"--insecure",
			"--listen %s: is not a loopback address, and there is no TLS: credentials would cross the network in clear",
			listen)
	case noAuth:
		e.log.Warn("INSECURE: everyone who can connect may do everything; --auth would require a credential", "listen",
			listen)
	}
	if noTLS {
		e.log.Warn("INSECURE: the network can read and change everything; --tls-cert and --tls-key would prevent it",
			"listen", listen)
	}
	return nil
}

// authFileError reports a mistake in an auth file, and that the server did not start.
func authFileError(err error) error {
	return fail(exitUsage, "correct the file; seqledger auth check FILE checks it", "%w", err)
}

// reloadOnSignal reads files again for each SIGHUP. What reads them logs the result.
func reloadOnSignal(reload func()) (stop func()) {
	signals := make(chan os.Signal, 1) // one pending signal is enough, because a reload reads the newest files
	signal.Notify(signals, syscall.SIGHUP)
	done, ended := make(chan struct{}), make(chan struct{})
	// Ended by stop, which waits for it.
	go func() {
		defer close(ended)
		for {
			select {
			case <-signals:
				reload()
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
		<-ended
	}
}
