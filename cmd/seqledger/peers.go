package main

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
	"github.com/seqledger/seqledger/ledger/seed"
	"github.com/seqledger/seqledger/server"
)

// peerFlags are the flags of serve that make a node part of a cluster.
type peerFlags struct {
	PeerListen    string   `help:"help_peer_listen" placeholder:"ADDRESS"`
	PeerAdvertise string   `help:"help_peer_advertise" placeholder:"ADDRESS"`
	Advertise     string   `help:"help_peer_client" placeholder:"ADDRESS"`
	Join          []string `help:"help_peer_join" placeholder:"ADDRESS"`
	PeerCert      string   `help:"help_peer_cert" type:"path" placeholder:"FILE"`
	PeerKey       string   `help:"Private key of --peer-cert." type:"path" placeholder:"FILE"`
	PeerCA        string   `name:"peer-ca" help:"help_peer_ca" type:"path" placeholder:"FILE"`
	PeerInsecure  bool     `help:"help_peer_insecure"`
	JoinTokenFile string   `help:"help_peer_token" type:"path" placeholder:"FILE"`
}

// cluster opens the listener for other nodes; nil without --peer-listen. The errors are usage errors, but for
// a port that is in use.
func (f *peerFlags) cluster(e *environment, clients net.Listener) (*ledger.Cluster, error) {
	config, err := f.check(e)
	if err != nil || f.PeerListen == "" {
		return nil, err
	}
	token, err := f.token()
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", f.PeerListen)
	if err != nil {
		hint := ""
		if errors.Is(err, syscall.EADDRINUSE) {
			hint = "another process listens there, perhaps a seqledger; stop it, or give another --peer-listen"
		}
		return nil, fail(exitFailed, hint, "--peer-listen %s: %w", f.PeerListen, err)
	}
	return &ledger.Cluster{
		Listener: listener, TLS: config, Insecure: f.PeerInsecure,
		Peer:   reachable(f.PeerAdvertise, listener),
		Client: reachable(f.Advertise, clients),
		Token:  token,
	}, nil
}

// reachable returns the address to give to others: the advertised one, or that of a listener if it is of one
// interface. A server that listens on all of them must be told its name.
func reachable(advertised string, l net.Listener) string {
	if advertised != "" {
		return advertised
	}
	if a, ok := l.Addr().(*net.TCPAddr); ok && a.IP.IsUnspecified() {
		return ""
	}
	return l.Addr().String()
}

// check validates the flags, and reads the TLS files.
func (f *peerFlags) check(e *environment) (*tls.Config, error) {
	if f.PeerListen == "" {
		if len(f.Join) > 0 || f.PeerAdvertise != "" || f.PeerCert != "" || f.PeerCA != "" || f.PeerInsecure {
			return nil, usage("--join, --peer-advertise, --peer-cert, --peer-ca and --peer-insecure need --peer-listen")
		}
		return nil, nil
	}
	host, err := checkListen("--peer-listen", f.PeerListen)
	if err != nil {
		return nil, err
	}
	for flag, address := range map[string]string{"--peer-advertise": f.PeerAdvertise, "--advertise": f.Advertise} {
		if _, _, err := net.SplitHostPort(address); address != "" && err != nil {
			return nil, usage("%s %s: must be a host and a port: %w", flag, address, err)
		}
	}
	for _, address := range f.Join {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, usage("--join %s: must be the host and the port of another node's --peer-listen: %w", address,
				err)
		}
	}
	files := 0
	for _, name := range []string{f.PeerCert, f.PeerKey, f.PeerCA} {
		if name != "" {
			files++
		}
	}
	token, err := f.token()
	switch {
	case err != nil:
		return nil, err
	case files != 0 && files != 3:
		return nil, usage("--peer-cert, --peer-key and --peer-ca belong together: each node proves to the others " +
			"who it is")
	case files == 3:
		return f.tls(e)
	case loopbackName(host):
		return nil, nil
	case !f.PeerInsecure:
		return nil, fail(exitUsage, "give --peer-cert, --peer-key and --peer-ca; on a trusted network give "+
			"--peer-insecure and --join-token-file",
			"--peer-listen %s: is not a loopback address, and there is no TLS between the nodes", f.PeerListen)
	case token == "":
		return nil, usage("--peer-insecure needs --join-token-file: anyone who can connect could join and read " +
			"everything")
	}
	e.log.Warn("INSECURE: the network between the nodes can read and change everything; --peer-cert, --peer-key and "+
		"--peer-ca would prevent it", "listen", f.PeerListen)
	return nil, nil
}

// tls reads the certificate that this node shows to the others, and the authority that theirs are of.
func (f *peerFlags) tls(e *environment) (*tls.Config, error) {
	certificate, err := keyPair(f.PeerCert, f.PeerKey)
	if err != nil {
		return nil, err
	}
	pool, err := certificatePool("--peer-ca", f.PeerCA)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		Certificates: []tls.Certificate{certificate}, RootCAs: pool, ClientCAs: pool, MinVersion: tls.VersionTLS13,
	}, nil
}

// leastToken is the least length of a join token in bytes.
const leastToken = 16

// token reads the join token, which may be empty.
func (f *peerFlags) token() (string, error) {
	if f.JoinTokenFile == "" {
		return "", nil
	}
	b, err := os.ReadFile(f.JoinTokenFile)
	if err != nil {
		return "", usage("--join-token-file: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if len(token) < leastToken {
		return "", usage("--join-token-file %s: must have at least %d characters", f.JoinTokenFile, leastToken)
	}
	return token, nil
}

// join makes the data directory of a node that joins a cluster, unless it belongs to a node already.
func (c *serveCommand) join(e *environment, cluster *ledger.Cluster) error {
	o := c.seedOptions(e, cluster.TLS, cluster.Token)
	o.Peer, o.Client = cluster.Peer, cluster.Client
	err := seed.Join(e.ctx, o)
	if errors.Is(err, seed.ErrJoined) {
		return nil
	}
	return err
}

// seedOptions say how the state of another node is fetched.
func (c *serveCommand) seedOptions(e *environment, config *tls.Config, token string) seed.Options {
	return seed.Options{
		Dir: c.Data, Nodes: c.Join, RoundTripper: transport.NewRoundTripper(config), Encrypted: config != nil,
		Token: token, Logger: e.log,
	}
}

// again gives the state of another node to this one, which is too far behind to follow the log. Its ledger is closed.
func (c *serveCommand) again(e *environment, behind *ledger.BehindError) error {
	e.log.Warn("this node is too far behind to follow the log and fetches the state of another one; it answers no "+
		"calls until it has it", "log index", behind.At.Index)
	config, err := c.peerFlags.check(e)
	if err != nil {
		return err
	}
	token, err := c.token()
	if err != nil {
		return err
	}
	err = seed.Again(e.ctx, c.seedOptions(e, config, token), behind.At.Index)
	if err != nil && e.ctx.Err() == nil {
		return fail(exitFailed, storageHint(err, c.Data), "fetch the state of another node: %w", err)
	}
	return nil
}

// servePeers answers what other nodes ask.
func (c *serveCommand) servePeers(l *ledger.Ledger, s *server.Server) error {
	token, err := c.token()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("POST "+ledger.JoinPath, withToken(token, l.JoinHandler()))
	mux.Handle("GET "+seed.Path, withToken(token, seed.Handler(l, c.BackupRate)))
	mux.Handle("/", withToken(token, s.PeerHandler()))
	l.ServePeers(mux)
	return nil
}

// withToken refuses those who do not know the token, if there is one.
func withToken(token string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !ledger.HasToken(r, token) {
			http.Error(w, `{"error":"the join token is missing or wrong: give the same --join-token-file to all nodes"}`,
				http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
