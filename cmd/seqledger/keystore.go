package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/embedded"
	"github.com/seqledger/seqledger/internal/storeurl"
	"github.com/seqledger/seqledger/server/auth"
)

// keyStoreFlags select where the records of keys are kept: in a running ledger, in one in this process, or in another
// store.
type keyStoreFlags struct {
	Store        string        `help:"Where records are kept: ledger, postgres://…, redis://…, s3://BUCKET/PREFIX, or memory: (lost at the end). Prefer the variable for a password." default:"ledger" placeholder:"URL"`
	Data         string        `help:"Directory of the ledger that this process opens; no other process may have it open." default:"./seqledger-keys" type:"path"`
	LedgerListen string        `help:"Also serve the ledger in --data on this loopback address, for seqledger key; off when empty." placeholder:"ADDRESS"`
	LedgerAuth   string        `help:"Auth file for --ledger-listen, as for serve --auth." type:"path" placeholder:"FILE"`
	Ledger       string        `help:"Use a running ledger: host:port or URL, several separated by commas. Default: the one in --data." placeholder:"ADDRESS"`
	TokenFile    string        `help:"File with the key for --ledger; acting for other principals needs the role delegate." name:"ledger-token-file" type:"path" placeholder:"FILE"`
	Journal      string        `help:"Directory for results that could not be stored; they are stored later. Default: journal in --data." type:"path" placeholder:"DIRECTORY"`
	MaxKeys      int           `help:"Keys that the ledger in --data keeps for one principal; more are refused." name:"max-keys-per-principal" default:"1000000"`
	MaxEntries   int           `help:"Records that --store memory: may have." default:"100000" shared:"MAX_ENTRIES"`
	Cleanup      time.Duration `help:"How often --store memory: and postgres:// delete expired records. The other stores do not need it." name:"cleanup-interval" default:"10s" shared:"CLEANUP_INTERVAL_SECONDS"`
	DrainTimeout time.Duration `help:"How long to wait for requests in progress when stopped." default:"30s"`
}

// check returns the mistakes in the flags.
func (c *keyStoreFlags) check() error {
	var found flagMistakes
	found.when(c.TokenFile != "" && c.Ledger == "", "--ledger-token-file needs --ledger")
	found.when(c.LedgerListen != "" && c.Ledger != "",
		"--ledger-listen: is for the ledger in this process, and not for --ledger")
	found.when(c.LedgerAuth != "" && c.LedgerListen == "", "--ledger-auth needs --ledger-listen")
	found.when(c.MaxKeys < 1, "--max-keys-per-principal: must be at least 1")
	found.when(c.MaxEntries < 1, "--max-entries: must be at least 1")
	found.when(c.Cleanup < time.Millisecond, "--cleanup-interval: must be at least 1ms")
	if c.foreign() {
		if err := storeurl.Check(c.Store); err != nil {
			found = append(found, usage("--store: %w", err))
		}
		found.when(c.Ledger != "", "--ledger: is for the store ledger, and not for another --store")
		found.when(c.LedgerListen != "", "--ledger-listen: is for the store ledger, and not for another --store")
		found.when(c.MaxKeys != defaultMaxKeys,
			"--max-keys-per-principal: only the ledger of this process counts keys, and not another --store")
	}
	found.when(c.DrainTimeout <= 0, "--drain-timeout: must be more than 0")
	return errors.Join(append(found, checkLoopback("--ledger-listen", c.LedgerListen))...)
}

// defaultMaxKeys is the default of MaxKeys.
const defaultMaxKeys = 1_000_000

// foreign reports whether the records are kept outside a ledger.
func (c *keyStoreFlags) foreign() bool { return c.Store != "" && c.Store != "ledger" }

// checkLoopback refuses an address that other machines could reach.
func checkLoopback(flag, address string) error {
	if address == "" {
		return nil
	}
	host, err := checkListen(flag, address)
	if err != nil {
		return usage("%w", err)
	}
	if !loopbackName(host) {
		return usage("%s %s: is not a loopback address; reach it from elsewhere through ssh -L", flag, address)
	}
	return nil
}

// keyStore keeps the records of keys.
type keyStore struct {
	idempotency.Store

	journal *idempotency.Journal
	own     *embedded.Ledger // nil unless the ledger runs in this process
	// address is the listening address of --ledger-listen, or "".
	address string
	access  *auth.Authority // from --ledger-auth, or nil
	// stop stops what was started, and returns why the ledger in this process failed, if it did.
	stop func() error
}

// failed is closed when the ledger in this process has failed; it is nil for a running ledger.
func (s *keyStore) failed() <-chan struct{} {
	if s.own == nil {
		return nil
	}
	return s.own.Failed()
}

// reload reads the file of --ledger-auth again.
func (s *keyStore) reload() {
	if s.access != nil {
		_ = s.access.Reload() // Reload logs the result itself
	}
}

// open connects to the store or opens the ledger in --data, and opens the journal.
func (c *keyStoreFlags) open(e *environment) (s *keyStore, err error) {
	switch {
	case c.foreign():
		s, err = c.openForeign(e)
	case c.Ledger == "":
		s, err = c.openEmbedded(e)
	default:
		s, err = c.connect(e)
	}
	if err != nil {
		return nil, err
	}
	dir := cmp.Or(c.Journal, filepath.Join(c.Data, "journal"))
	if s.journal, err = idempotency.OpenJournal(dir, s.Store, e.log); err != nil {
		return nil, errors.Join(fail(exitFailed, "give each process a --journal of its own",
			"--journal %s: %w", dir, err), s.stop())
	}
	closeLedger := s.stop
	s.stop = func() error { return errors.Join(s.journal.Close(), closeLedger()) }
	return s, nil
}

// foreignStoreTimeout bounds the time to connect to a store at startup.
const foreignStoreTimeout = 10 * time.Second

// openForeign connects to the store of --store.
func (c *keyStoreFlags) openForeign(e *environment) (*keyStore, error) {
	ctx, cancel := context.WithTimeout(e.ctx, foreignStoreTimeout)
	defer cancel()
	s, closing, err := storeurl.OpenWith(ctx, c.Store, storeurl.Options{
		Logger: e.log, MaxEntries: c.MaxEntries, CleanupInterval: c.Cleanup,
	})
	if err != nil {
		return nil, fail(exitFailed, "", "--store: %w", err) // a store without its tables says how to make them
	}
	return &keyStore{Store: s, stop: closing}, nil
}

// connect connects to the ledger of --ledger.
func (c *keyStoreFlags) connect(e *environment) (*keyStore, error) {
	o, err := (&connectionFlags{Server: c.Ledger, TokenFile: c.TokenFile}).options()
	if err != nil {
		text := strings.NewReplacer("--server", "--ledger", "--token-file", "--ledger-token-file").Replace(err.Error())
		return nil, usage("%s", text)
	}
	o.Logger = e.log
	conn, err := client.New(o)
	if err != nil {
		return nil, err
	}
	return &keyStore{Store: idempotency.Ledger(conn), stop: conn.Close}, nil
}

// openEmbedded opens the ledger in --data, which others reach through --ledger-listen.
func (c *keyStoreFlags) openEmbedded(e *environment) (*keyStore, error) {
	s := new(keyStore)
	// Listen before the ledger is opened, so that a port in use does not create a ledger.
	listener, err := c.listen(e, s)
	if err != nil {
		return nil, err
	}
	// Not e.ctx, because requests in flight are still answered after the signal.
	s.own, err = embedded.Open(context.WithoutCancel(e.ctx), embedded.Options{
		Dir: c.Data, Version: buildVersion().Version, Logger: e.log, PrincipalKeys: c.MaxKeys,
		Listener: listener, Auth: s.access, StoredFile: filepath.Join(c.Data, storedName),
		DrainTimeout: c.DrainTimeout,
	})
	if err != nil {
		return nil, fail(exitFailed, storageHint(err, c.Data), "--data %s: %w", c.Data, err)
	}
	s.Store = s.own.Store()
	s.stop = func() error {
		err := s.own.Close()
		if failure, ok := errors.AsType[*embedded.FailedError](err); ok {
			return fail(exitFailed, storageHint(failure.Cause, c.Data), "%w", failure.Cause)
		}
		return err
	}
	return s, nil
}

// listen prepares --ledger-listen. The listener is nil without the flag.
func (c *keyStoreFlags) listen(e *environment, s *keyStore) (listener net.Listener, err error) {
	if c.LedgerListen == "" {
		return nil, nil
	}
	if c.LedgerAuth != "" {
		if s.access, err = auth.Open(c.LedgerAuth, auth.Options{Logger: e.log}); err != nil {
			return nil, authFileError(fmt.Errorf("--ledger-auth: %w", err))
		}
	}
	if listener, err = listenOn("--ledger-listen", c.LedgerListen); err != nil {
		return nil, err
	}
	s.address = listener.Addr().String()
	e.log.Info("serving the ledger", "address", s.address)
	return listener, nil
}
