package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/internal/listen"
	"github.com/seqledger/seqledger/ledger/witness"
)

type witnessCommand struct {
	Serve  witnessServeCommand  `cmd:"" default:"withargs" help:"Cosign the checkpoints of ledgers. This is what witness does without a word."`
	Keygen witnessKeygenCommand `cmd:"" help:"Make the key of a witness."`
}

type witnessServeCommand struct {
	Listen  string `help:"Address to listen on; port 0 takes a free one." default:"127.0.0.1:7490"`
	State   string `help:"Directory with what it has cosigned; an absent or empty one is that of a new witness." required:"" type:"path" placeholder:"DIR"`
	Policy  string `help:"File whose log lines name the ledgers to cosign for." required:"" type:"path" placeholder:"FILE"`
	Key     string `help:"File of the private key, made by witness keygen." required:"" type:"path" placeholder:"FILE"`
	TLSCert string `name:"tls-cert" help:"Certificate of the server (PEM), with its intermediates." type:"path" placeholder:"FILE"`
	TLSKey  string `name:"tls-key" help:"Private key of --tls-cert." type:"path" placeholder:"FILE"`
}

func (*witnessServeCommand) Help() string {
	return `A witness remembers the newest checkpoint of each ledger and cosigns another one only if it has all of the one before
it. So a ledger that was forked, shortened or restored gets no cosignature. It sees hashes alone, and needs no
credential: what it cosigns is signed by the ledger. Anybody may ask it for the newest checkpoint of a ledger.

    seqledger witness keygen witness.example.com/w1 w1.key
    seqledger witness --listen 0.0.0.0:7490 --state ./witness --policy policy --key w1.key

    # policy
    log ledger.example.com/5f0c...+1a2b3c4d+AY...
    quorum none

The state must never be lost, nor be replaced by an older copy: make a new key then, and tell those who verify.
The protocol is that of c2sp.org/tlog-witness, the policy that of c2sp.org/tlog-policy.`
}

// witnessReady is the single line that witness prints with --json.
type witnessReady struct {
	Address string `json:"address"`
	Key     string `json:"key"`
	Logs    int    `json:"logs"`
}

func (c *witnessServeCommand) Run(e *environment) (err error) {
	_, err = checkListen("--listen", c.Listen)
	access := accessFlags{TLSCert: c.TLSCert, TLSKey: c.TLSKey}
	if err == nil && (c.TLSCert == "") != (c.TLSKey == "") {
		err = usage("--tls-cert and --tls-key belong together")
	}
	if err != nil {
		return err
	}
	key, err := witness.ReadKey(c.Key, witness.WitnessKey)
	if err != nil {
		return usage("--key: %w", err)
	}
	policy, err := readPolicy("--policy", c.Policy)
	if err == nil && len(policy.Logs) == 0 {
		err = usage("--policy %s: has no log line, so that there is nothing to cosign", c.Policy)
	}
	if err != nil {
		return err
	}
	signal.Ignore(notForServers...)
	listener, err := listenOn("--listen", c.Listen)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // normally the server has already closed it
	w, err := witness.Open(c.State, key, policy, e.log)
	if err != nil {
		return fmt.Errorf("--state: %w", err)
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	s := listen.Server(w, 16<<10, e.log)
	s.ReadTimeout, s.WriteTimeout = listen.HeaderTimeout, listen.HeaderTimeout
	if s.TLSConfig, err = access.tls(e); err != nil {
		return err
	}
	return serveWitness(e, s, listener, witnessReady{listener.Addr().String(), key.String(), len(policy.Logs)})
}

// serveWitness serves requests until the process is told to stop.
func serveWitness(e *environment, s *http.Server, listener net.Listener, ready witnessReady) error {
	err := e.show(ready, func(t *table) {
		t.field("witness", ready.Key)
		t.field("address", ready.Address)
		t.field("logs", number(uint64(ready.Logs)))
	})
	if err != nil && !errors.Is(err, syscall.EPIPE) {
		return err
	}
	ended := make(chan error, 1)
	// Ends when the server is told to stop; the process ends with it.
	go func() { ended <- listen.Serve(s, listener, listen.Connections().Peers) }()
	select {
	case err := <-ended:
		return err
	case <-e.ctx.Done():
	}
	limited, cancel := context.WithTimeout(context.Background(), time.Minute) // longer than any request may take
	defer cancel()
	return s.Shutdown(limited)
}

// readPolicy reads the policy that a flag names.
func readPolicy(flag, path string) (*witness.Policy, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, usage("%s: %w", flag, err)
	}
	p, err := witness.ParsePolicy(text)
	if err != nil {
		return nil, usage("%s %s: %w", flag, path, err)
	}
	return p, nil
}

type witnessKeygenCommand struct {
	Name string `arg:"" help:"Name of the witness, by which it is told apart: a host and a path that are yours."`
	File string `arg:"" help:"New file for the private key." type:"path"`
}

func (*witnessKeygenCommand) Help() string {
	return `The public key is printed, as the witness lines of policies have it. Nobody can find the private key again.

    seqledger witness keygen witness.example.com/w1 w1.key`
}

func (c *witnessKeygenCommand) Run(e *environment) error {
	return createKey(e, witness.WitnessKey, c.Name, c.File)
}

// createKey makes a key and shows the public half.
func createKey(e *environment, kind witness.Kind, name, path string) error {
	key, err := witness.NewKey(kind, name)
	if err == nil {
		err = checkParent("<file>", path)
	}
	if err != nil {
		return usage("%w", err)
	}
	if err := key.Create(path); err != nil {
		return err
	}
	if e.json {
		return e.showObject(map[string]string{"key": key.String()})
	}
	_, err = fmt.Fprintln(e.stdout, key)
	return err
}
