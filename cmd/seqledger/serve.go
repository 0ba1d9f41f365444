package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/mcp/tools"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/server"
	"github.com/seqledger/seqledger/server/console"
)

type serveCommand struct {
	Listen          string        `help:"Address to listen on; port 0 takes a free one. Addresses other than loopback need --auth and TLS." default:"127.0.0.1:7450"`
	Data            string        `help:"Data directory; an absent or empty one becomes a new ledger." default:"./seqledger-data" type:"path"`
	DrainTimeout    time.Duration `help:"How long to wait for requests in progress when stopped." default:"30s"`
	DebugListen     string        `help:"Also serve profiles (/debug/pprof/), /metrics, /healthz and /readyz without TLS on this loopback address; off when empty." placeholder:"ADDRESS"`
	CheckpointBytes int64         `help:"Bytes of changes to gather in memory before a checkpoint; 0 adapts between 32 and 128 MiB. More writes less to disk and takes about four times as much memory." default:"0"`
	ScrubBytes      int64         `help:"Bytes of the state file to read and compare with their checksums each second, all of them at most once an hour; -1 disables." default:"8388608"`
	BackupRate      int64         `help:"Read limit of a backup, or of a state for the archive, in bytes per second; -1 for none." default:"33554432"`
	DiskReserve     int64         `help:"Refuse writes while less than this is free on the disk of --data and no other node can lead; reads continue. 0 never refuses; -1 is 1 GiB, or a twentieth of a smaller disk." default:"-1"`
	Archive         archivePath   `help:"Copy sealed block files, and a state from time to time, to this directory or bucket, s3://BUCKET/PREFIX?region=REGION&endpoint=URL. Retention removes nothing that is not there. A later start without this flag removes nothing; none gives up the archive." nonempty:"" placeholder:"TARGET"`
	ArchiveInterval time.Duration `help:"How long after one state the next one is copied to the archive; 0 copies none." default:"24h"`
	ArchiveWindow   time.Duration `help:"How long the archive keeps states; 0 never removes any. It keeps all blocks." default:"168h"`
	AcceptClock     bool          `help:"Accept the system's clock although it is more than 30 days ahead of the last command and further than any earlier pause: anything with a time to live may expire." env:"-"`
	KeyLease        time.Duration `help:"Default lease of Reserve and Heartbeat. All nodes of a cluster should have the same defaults." default:"60s" shared:"PENDING_TTL_SECONDS"`
	KeyTTL          time.Duration `help:"Default time to keep the result of a key or a keyed write." name:"key-ttl" default:"24h" shared:"COMMITTED_TTL_SECONDS"`
	KeyRejectedTTL  time.Duration `help:"Default time to keep the refusal of a key." name:"key-rejected-ttl" default:"60s" shared:"REJECTED_TTL_SECONDS"`
	MCP             bool          `name:"mcp" help:"Offer tools to agents over streamable HTTP, at /mcp of the same port and with the same credentials."`
	NoConsole       bool          `help:"Do not serve the console, a web page at /console/ on which a person looks at the ledger."`
	accessFlags     `embed:""`
	peerFlags       `embed:""`
	receiptFlags    `embed:""`
}

func (*serveCommand) Help() string {
	return `What the ledger keeps, and for how long, is part of its replicated state: see seqledger config.

Without --auth every caller may do everything, so only this machine can connect. With it, callers need an API
key or a session token; SIGHUP makes the server read the file again. TLS files are read again when they change.
--insecure opens the server to other machines without one of the two.

SIGTERM and Ctrl-C stop the server once every accepted request is answered. A second signal, a second or more
later, stops it at once; acknowledged writes are never lost.

    seqledger serve
    seqledger serve --mcp
    seqledger serve --listen 127.0.0.1:7451 --data /var/lib/seqledger
    seqledger serve --archive /mnt/archive
    seqledger serve --listen 0.0.0.0:7450 --auth auth.yaml --tls-cert cert.pem --tls-key key.pem`
}

// storedName is the file in the data directory that says how many bytes each credential
// has stored.
const storedName = "STORED"

// serveReady is the one line that serve prints, with --json.
type serveReady struct {
	Address  string `json:"address"`
	Data     string `json:"data"`
	LedgerID string `json:"ledgerId"`
	Console  string `json:"console,omitempty"` // URL of the web page
}

// consoleURL returns the URL of the console as a browser on this machine reaches it; "" if there is none.
func (c *serveCommand) consoleURL(listener net.Addr) string {
	if c.NoConsole {
		return ""
	}
	scheme := "http"
	if c.TLSCert != "" {
		scheme = "https"
	}
	host, port, err := net.SplitHostPort(listener.String())
	if ip := net.ParseIP(host); err != nil || ip.IsUnspecified() {
		host = "localhost"
	}
	return scheme + "://" + net.JoinHostPort(host, port) + console.Path
}

func (c *serveCommand) Run(e *environment) (err error) {
	if err := c.check(); err != nil {
		return err
	}
	tuneCollector()
	signal.Ignore(notForServers...) // first, because access may ask for one of them
	access, err := c.access(e, c.Listen)
	if err != nil {
		return err
	}
	defer access.close()
	for said := false; ; {
		err := c.run(e, access, &said)
		behind, is := errors.AsType[*cluster.BehindError](err)
		if !is {
			return err
		}
		if err := c.again(e, behind); err != nil || e.ctx.Err() != nil {
			return err
		}
	}
}

// run opens the ledger and serves it until it is told to stop, or fails. It says where it listens unless that was
// said, because it stays the same.
func (c *serveCommand) run(e *environment, access *access, said *bool) error {
	// Listening comes first, because a port in use must not create a ledger.
	listener, err := listenOn("--listen", c.Listen)
	if err != nil {
		return err
	}
	cluster, err := c.cluster(e, listener)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	if cluster != nil { // a port that the system has chosen is used again
		c.Listen, c.PeerListen = listener.Addr().String(), cluster.Listener.Addr().String()
	}
	l, err := c.open(e, cluster)
	if err != nil && e.ctx.Err() != nil {
		return listener.Close() // told to stop before it was up, which is no failure
	}
	if err != nil {
		return errors.Join(fail(exitFailed, storageHint(err, c.Data), "--data %s: %w", c.Data, err), listener.Close())
	}
	serveErr := c.serve(e, l, listener, access, said)
	// Closed before the failure is looked at, because closing writes too.
	closeErr := l.Close()
	logStopped(e, l)
	if failure := l.Err(); failure != nil {
		return fail(exitFailed, storageHint(failure, c.Data), "%w", failure)
	}
	return errors.Join(serveErr, closeErr)
}

// open opens the ledger, of which a node that joins fetches the state first.
func (c *serveCommand) open(e *environment, cluster *cluster.Options) (*ledger.Ledger, error) {
	if len(c.Join) > 0 {
		if err := c.join(e, cluster); err != nil {
			return nil, errors.Join(err, cluster.Listener.Close())
		}
	}
	target, err := c.Archive.open(e.ctx)
	if err != nil {
		return nil, fmt.Errorf("--archive: %w", err)
	}
	receipts, err := c.receiptFlags.options(0)
	if err != nil {
		return nil, err
	}
	return ledger.Open(e.ctx, ledger.Options{
		Dir: c.Data, Config: machine.DefaultConfig(), Logger: e.log,
		CheckpointBytes: c.CheckpointBytes, AcceptClock: c.AcceptClock, ScrubBytes: c.ScrubBytes,
		ArchiveInterval: orNegative(c.ArchiveInterval), ArchiveWindow: orNegative(c.ArchiveWindow),
		ArchiveRate: c.BackupRate,
		Archive:     target, EndArchive: c.Archive == noArchive, Cluster: cluster, Receipts: receipts,
	})
}

// orNegative returns -1 for 0, which means the default in the options of a ledger.
func orNegative(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// Bounded because a checkpoint below the least would be written at every other write; one beyond
// the most would take the memory that it is to bound.
const (
	leastCheckpointBytes = 1 << 20
	mostCheckpointBytes  = 4 << 30
)

// check refuses values that make no sense, before anything is opened.
func (c *serveCommand) check() error {
	switch {
	case c.DrainTimeout <= 0:
		return usage("--drain-timeout: must be more than 0")
	case c.KeyLease < idempotency.MinLease || c.KeyLease > idempotency.MaxLease:
		return usage("--key-lease: must be from %v to %v", idempotency.MinLease, idempotency.MaxLease)
	case c.KeyTTL < idempotency.MinTTL || c.KeyTTL > idempotency.MaxTTL:
		return usage("--key-ttl: must be from %v to %v", idempotency.MinTTL, idempotency.MaxTTL)
	case c.KeyRejectedTTL < idempotency.MinTTL || c.KeyRejectedTTL > idempotency.MaxTTL:
		return usage("--key-rejected-ttl: must be from %v to %v", idempotency.MinTTL, idempotency.MaxTTL)
	case c.CheckpointBytes != 0 && c.CheckpointBytes < leastCheckpointBytes, c.CheckpointBytes > mostCheckpointBytes:
		return usage("--checkpoint-bytes: must be 0 or from %d to %d", leastCheckpointBytes, int64(mostCheckpointBytes))
	case c.BackupRate == 0 || c.BackupRate < -1:
		return usage("--backup-rate: must be more than 0, or -1 for as fast as it can")
	case c.ArchiveInterval != 0 && c.ArchiveInterval < time.Minute:
		return usage("--archive-interval: must be at least a minute, or 0 to copy no states")
	case c.ArchiveWindow < 0:
		return usage("--archive-window: must not be negative")
	case c.Archive.directory() != "" && isFile(c.Archive.directory()):
		return usage("--archive: %s is not a directory", c.Archive)
	case c.DiskReserve < -1:
		return usage("--disk-reserve: must be 0 or more, or -1 for the default")
	}
	if _, err := c.receiptFlags.options(0); err != nil {
		return err
	}
	return checkLoopback("--debug-listen", c.DebugListen)
}

// statPatience is how long a start waits for the file system of the archive, which may hang.
const statPatience = 5 * time.Second

// isFile reports whether a path is something other than a directory. A path that is absent or does not answer may
// become a directory later, which the status shows.
func isFile(path string) bool {
	answer := make(chan bool, 1)
	// Ends when the file system answers, which may be after isFile returns.
	go func() {
		info, err := os.Stat(path)
		answer <- err == nil && !info.IsDir()
	}()
	select {
	case is := <-answer:
		return is
	case <-time.After(statPatience):
		return false
	}
}

// serve answers until the process is told to stop or the storage fails.
func (c *serveCommand) serve(
	e *environment, l *ledger.Ledger, listener net.Listener, access *access, said *bool,
) (err error) {
	o := server.Options{
		Ledger: l, Version: buildVersion().Version, Logger: e.log, DrainTimeout: c.DrainTimeout,
		BackupRate: c.BackupRate, DiskReserve: c.DiskReserve, StoredFile: filepath.Join(c.Data, storedName),
		Auth: access.auth, TLS: access.tls, Insecure: c.Insecure, CORSOrigins: c.CORSOrigin,
		NoConsole: c.NoConsole, KeyLease: c.KeyLease, KeyTTL: c.KeyTTL, KeyRejectedTTL: c.KeyRejectedTTL,
	}
	if c.MCP {
		o.MCP = func(api http.RoundTripper) (http.Handler, error) {
			return tools.Handler(tools.Options{Version: o.Version}, api, e.log)
		}
	}
	s, err := server.New(o)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	c.servePeers(l, s)
	// Not asked of the server, because it does not answer yet.
	var id machine.LedgerID
	// Not as fresh as can be, because the other nodes may not be up yet.
	err = l.ViewLocal(func(v machine.View) error {
		id = v.LedgerID()
		return nil
	})
	if err == nil {
		_, err = c.receiptFlags.options(id)
	}
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	debug, err := startDebug(e, c.DebugListen, s.ServeDebug)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	defer debug.stop()
	c.logServing(e, l, listener.Addr(), id)
	// Because the listener already accepts connections, a program that reads this line may call.
	switch {
	case *said:
	case e.json:
		err = e.showObject(serveReady{listener.Addr().String(), c.Data, id.String(), c.consoleURL(listener.Addr())})
	default:
		ready := fmt.Sprintf("serving on %s, data in %s, ledger %s\n", listener.Addr(), c.Data, id)
		if page := c.consoleURL(listener.Addr()); page != "" {
			ready += "console at " + page + "\n"
		}
		_, err = io.WriteString(e.stdout, ready)
	}
	if err != nil && !errors.Is(err, syscall.EPIPE) {
		return errors.Join(err, listener.Close())
	}
	*said = true
	stop := context.AfterFunc(e.ctx, func() {
		e.log.Info("stopping: answering what is under way", "reason", context.Cause(e.ctx), "at most", c.DrainTimeout)
	})
	defer stop()
	err = s.Serve(e.ctx, listener)
	if errors.Is(err, context.DeadlineExceeded) {
		return fail(exitFailed, "nothing that was acknowledged is lost; --drain-timeout waits longer",
			"not everything was answered: %w", err)
	}
	return err
}

// tuneCollector sets the garbage collector, unless the operator has.
func tuneCollector() {
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		server.TuneCollector()
	}
}
