package server

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/server/auth"
)

// Options configure a Server. Only Ledger is required.
type Options struct {
	// Ledger is the ledger to serve. The caller opens it, and closes it after Serve has returned.
	Ledger *ledger.Ledger
	// Version is reported by GetStatus and in the metrics.
	Version string
	// Logger receives events for operators; requests only at debug level, and never a payload or a key. Default:
	// slog.Default().
	Logger *slog.Logger
	// MaxRequestBytes bounds one message of a request, decompressed. Default: 6 MiB, because a write may have 4 MiB of
	// operations, and JSON carries them in base64, which takes a third more.
	MaxRequestBytes int
	// MaxRequests bounds the concurrent requests, streams included. Each credential has a share of this and the other
	// bounds; see package admission. Default: 4,096.
	MaxRequests int
	// MaxConnections bounds the open connections. Beyond it the server closes the oldest connection without an
	// authenticated caller, or else the new one. Default: 16,384, or less if the process may have few files open: see
	// package listen.
	MaxConnections int
	// MaxOpenStreams bounds the open WriteStreams, Watches and Backups together. Default: 1,024.
	MaxOpenStreams int
	// Auth decides who may call and what each caller may do. Default: nil, every caller may do everything as
	// system:anonymous. Serve then accepts only a loopback listener, and requests with a loopback Host.
	Auth *auth.Authority
	// PrincipalKeys is how many keyed records each principal may have in a scope when Auth is nil. With Auth the limits
	// of the credentials say it. Default: 0, no bound.
	PrincipalKeys int
	// KeyLease, KeyTTL and KeyRejectedTTL are what a request about a key gets that leaves its lease, or how long its
	// result or its refusal is known, open. Default: 60 s, 24 h, 60 s.
	KeyLease, KeyTTL, KeyRejectedTTL time.Duration
	// TLS makes Serve speak TLS; LoadTLS makes one. Default: nil, cleartext.
	TLS *tls.Config
	// Insecure lets Serve accept a listener that other machines can reach although Auth or TLS is nil, and requests
	// with any Host.
	Insecure bool
	// CORSOrigins are the origins, such as https://app.example.com, whose pages may call from a browser; "*" is every
	// one, and refused together with Auth. Default: none, no CORS header is ever sent.
	CORSOrigins []string
	// MCP makes the handler of /mcp, the endpoint for agents, from the API: a transport on which a request takes its
	// caller and its limits from the context of the request to /mcp, which is authenticated and admitted before.
	// Default: nil, there is no such endpoint.
	MCP func(api http.RoundTripper) (http.Handler, error)
	// NoConsole leaves out the web page at /console/. Default: it is served, to everybody who can connect; what it
	// shows needs a credential like every call.
	NoConsole bool
	// DrainTimeout bounds how long Serve waits, after its context has ended, for requests under way. Default: 30 s.
	DrainTimeout time.Duration
	// BackupRate bounds how fast a backup reads the state, in bytes per second. Default: 32 MiB; negative means no
	// bound.
	BackupRate int64
	// DiskReserve is how many bytes must stay free on the file system of the ledger: writes are refused while less is
	// free, because a full disk would stop the ledger. 0 is no reserve; negative is 1 GiB, or a twentieth of a smaller
	// file system.
	DiskReserve int64
	// StoredFile is the file with the number of bytes that each credential has stored. Empty keeps them only in memory.
	// It is not used without Auth.
	StoredFile string
}

// validate fills in the defaults.
func (o *Options) validate() error {
	if o.Ledger == nil {
		return errors.New("server: Options.Ledger is nil")
	}
	if o.MaxRequestBytes < 0 || o.MaxRequests < 0 || o.MaxConnections < 0 || o.MaxOpenStreams < 0 ||
		o.DrainTimeout < 0 || o.PrincipalKeys < 0 {
		return errors.New("server: Options: a limit is negative")
	}
	outside := func(d, most time.Duration) bool { return d != 0 && (d < time.Second || d > most) }
	if outside(o.KeyLease, keyed.MaxLease) || outside(o.KeyTTL, keyed.MaxTTL) ||
		outside(o.KeyRejectedTTL, keyed.MaxTTL) {
		return fmt.Errorf("server: Options: KeyLease must be 1s to %v, KeyTTL and KeyRejectedTTL 1s to %v",
			keyed.MaxLease, keyed.MaxTTL)
	}
	if err := ValidateOrigins(o.CORSOrigins, o.Auth != nil); err != nil {
		return err
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Auth == nil {
		o.StoredFile = ""
	}
	if o.MaxRequestBytes == 0 {
		o.MaxRequestBytes = 6 << 20
	}
	if o.DrainTimeout == 0 {
		o.DrainTimeout = 30 * time.Second
	}
	return nil
}
