package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/seqledger/seqledger/internal/testkit/process"
)

// job is one write: number sequence of stream.
type job struct {
	stream   int
	sequence uint64
	payload  []byte
	// Of streamConn alone: the Writer of the stream, and the key that it gave to the write.
	writer *streamWriter
	sent   string
}

// key returns the idempotency key, which is as fixed as the write.
func (j *job) key() (key [16]byte) {
	binary.BigEndian.PutUint64(key[:8], uint64(j.stream))
	binary.BigEndian.PutUint64(key[8:], j.sequence)
	return key
}

// client returns the name of the stream's client.
func (j *job) client() string { return fmt.Sprint("client-", j.stream) }

// hash returns the request hash, as seqledger's server computes it for itself.
func (j *job) hash() [16]byte { return xxh3.Hash128(j.payload).Bytes() }

// answer is what a system says to a write.
type answer struct {
	reply    string // names the committed write; a retry gets the same one
	replayed bool   // the system says that this is the stored reply
}

// placement is how callers reach a system.
type placement struct {
	callers     int
	connections int
	// pipelined: requests of many callers share a connection without waiting
	// for each other's answers.
	pipelined bool
}

// system is something that can do the work.
type system interface {
	// start starts it with nothing in it; dir is empty and its own.
	start(ctx context.Context, dir string) error
	// restart ends it in an orderly way and starts it with what it had.
	restart(ctx context.Context) error
	// processes are those that do the server's work.
	processes() []int
	// connect returns what callers call.
	connect(ctx context.Context, p placement) (conn, error)
	// stop ends it, also when it did not start.
	stop() error
}

// conn is a way to a system. A caller has one call under way at most, and all
// calls for a stream come from one caller.
type conn interface {
	// do commits what has not been committed before, or repeats what was.
	do(ctx context.Context, j *job, repeat bool) (answer, error)
	close() error
}

// keyedConn is a conn of a system that also does keyed pairs.
type keyedConn interface {
	conn
	// once reserves a key, does the work, and stores its result, each in a durable step. For a key whose work was
	// done it returns the stored result, and errPending while another call is at the work, if it does not wait.
	once(ctx context.Context, key string, work func() []byte) ([]byte, error)
}

// errPending says that a key is reserved by another call.
var errPending = errors.New("the key is reserved")

// kind is a system that can be chosen.
type kind struct {
	name string
	make func() system
	// find returns the version, or an error that says how to get it.
	find func() (string, error)
	// settings are those that matter for durability and speed, for people.
	settings string
	// lacks is which part of the work it does not do.
	lacks string
	// connections returns pool sizes to try for a number of callers.
	connections func(callers int, pipelined bool) []int
	pipelines   bool // can do rows that are pipelined
	named       bool // is measured only where -systems names it
	// keyed is how it does a keyed pair, and what of it it does not do; empty: it does none.
	keyed      string
	unnumbered bool // it does keyed pairs alone
}

// described returns the settings, and how it does a keyed pair.
func (k *kind) described() string {
	if k.keyed == "" {
		return k.settings
	}
	return k.settings + ". A keyed pair: " + k.keyed
}

// child is a system whose server is a child process.
type child struct {
	dir     string
	address string
	process *process.Process
	// launch starts the server with what is in dir, and sets address and process.
	launch func(ctx context.Context) error
}

// self launches this program as the server of a system.
func (c *child) self(ctx context.Context, name string, more ...string) (err error) {
	command := process.Self(append([]string{"-serve", name, "-dir", c.dir}, more...)...)
	c.process, c.address, err = process.LaunchServer(ctx, command, c.dir+".log")
	return err
}

func (c *child) start(ctx context.Context, dir string) error {
	c.dir = dir
	return c.launch(ctx)
}

func (c *child) restart(ctx context.Context) error {
	if err := c.process.Stop(); err != nil {
		return err
	}
	return c.launch(ctx)
}

func (c *child) processes() []int { return c.process.Tree() }

func (c *child) stop() error { return c.process.Stop() }

func builtIn(module string) func() (string, error) {
	return func() (string, error) { return moduleVersion(module), nil }
}

func oneConnection(int, bool) []int { return []int{1} }

func kinds() []kind {
	return []kind{
		{name: "seqledger", make: newWire(true), find: builtIn(""),
			settings:    "defaults; writer.Writers over one WriteStream; retries over a second one",
			connections: oneConnection, pipelines: true, keyed: seqledgerKeyed},
		{name: "seqledger-unary", make: newWire(false), find: builtIn(""),
			connections: oneConnection,
			settings:    "defaults; Write, Connect with protobuf"},
		{name: "postgres", make: newPostgres, find: findPostgres, settings: postgresSettings,
			connections: pools(8, 32, 64, 128), pipelines: true, keyed: postgresKeyed},
		{name: "redis", make: newRedis, find: findRedis, settings: redisSettings,
			connections: pools(8, 64, 256), pipelines: true, keyed: redisKeyed},
		{name: "nats", make: newNATS,
			find:     builtIn("github.com/nats-io/nats-server/v2"),
			settings: natsSettings, connections: pools(1, 4, 16),
			lacks: "no request hash is compared; an exact repeat is refused for its expected sequence before its id " +
				"is looked at, so that retries go without one; the reply is the stream's sequence alone; a retry is " +
				"known for the duplicate window of 2 minutes, not for ever"},
		{name: "etcd", make: newEtcd, find: builtIn("go.etcd.io/etcd/server/v3"),
			settings: etcdSettings, connections: pools(1, 4, 16),
			lacks: etcdLacks},
		{name: "restate", make: newRestate, find: findRestate, settings: "one node, defaults", unnumbered: true,
			connections: pools(8, 64, 256), keyed: restateKeyed},
		{name: "seqledger-3", make: newWireCluster, find: builtIn(""), connections: oneConnection, named: true,
			settings: "three nodes as processes of this machine, defaults; otherwise as seqledger", pipelines: true,
			keyed: seqledgerKeyed},
		{name: "etcd-3", make: newEtcdCluster, find: builtIn("go.etcd.io/etcd/server/v3"), named: true,
			settings: "three members as processes of this machine, callers spread over them; otherwise as etcd",
			lacks:    etcdLacks, connections: pools(1, 4, 16)},
	}
}

// pools returns pool sizes to try: those not larger than the callers, or as
// many as there are callers. Pipelined, few connections are the point.
func pools(sizes ...int) func(callers int, pipelined bool) []int {
	return func(callers int, pipelined bool) []int {
		if pipelined {
			return []int{1, 2, 4, 8}
		}
		var fit []int
		for _, size := range sizes {
			if size < callers {
				fit = append(fit, size)
			}
		}
		if most := sizes[len(sizes)-1]; callers <= most {
			fit = append(fit, callers)
		}
		return fit
	}
}
