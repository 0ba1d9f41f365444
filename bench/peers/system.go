package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/zeebo/xxh3"

	"github.com/seqledger/seqledger/internal/testkit/process"
)

// job is one write: number sequence of stream.
type job struct {
	stream   int
	sequence uint64
	payload  []byte
	// Of streamConn alone: the session of the stream's Writer, and the key that it gave to the write.
	session uint64
	sent    string
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

// decided returns the answer of write_once and of write.lua.
func decided(outcome int64, reply string, err error) (answer, error) {
	const committed, replayed = 1, 2
	if err == nil && (outcome != committed && outcome != replayed || reply == "") {
		err = fmt.Errorf("refused with outcome %d", outcome)
	}
	return answer{reply, outcome == replayed}, err
}

// placement is how callers reach a system.
type placement struct {
	connections int
	pipelined   bool // requests of many callers share a connection without waiting for each other's answers
}

// system is something that can do the work.
type system interface {
	// launch starts its processes with what they have in dir, which is nothing at first, and waits until they answer.
	// It also returns those that have started when it fails.
	launch(ctx context.Context, dir string) ([]*process.Process, error)
	// connect returns what callers call.
	connect(ctx context.Context, at placement) (conn, error)
}

// conn is a way to a system. A caller has one call under way at most, and all calls for a stream come from one caller.
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
	// version returns the version, or an error that says how to get the system.
	version func() (string, error)
	// settings are those that matter for durability and speed, for people. What it does not do is in ../README.md.
	settings string
	// pools are the numbers of connections to try; without any there is one.
	pools      []int
	pipelines  bool // can do rows that are pipelined
	keyed      bool // does keyed pairs
	unnumbered bool // does nothing else
	named      bool // is measured only where -systems names it
}

func kinds() []kind {
	return []kind{
		{
			name: "seqledger", make: func() system { return &wire{nodes: 1} }, version: module(""),
			settings:  "defaults; writer.Writers over one WriteStream; retries over a second one",
			pipelines: true, keyed: true,
		},
		{
			name: "seqledger-unary", make: func() system { return &wire{nodes: 1, unary: true} }, version: module(""),
			settings: "defaults; Write, Connect with protobuf",
		},
		{
			name: "postgres", make: func() system { return new(postgres) }, version: postgresVersion,
			settings: strings.Join(postgresOptions, " ") + "; one PL/pgSQL function, one round trip; pipelined: pgx " +
				"batches, one transaction each",
			pools: []int{8, 32, 64, 128}, pipelines: true, keyed: true,
		},
		{
			name: "redis", make: func() system { return new(redisServer) },
			version: program("redis-server", "on Debian: apt-get install redis-server"),
			settings: "appendonly=yes appendfsync=always no rewrites of the file and no snapshots; one Lua script, " +
				"one round trip",
			pools: []int{8, 64, 256}, pipelines: true, keyed: true,
		},
		{
			name: "nats", make: func() system { return new(natsServer) },
			version: module("github.com/nats-io/nats-server/v2"),
			settings: "sync_interval=always, file storage, one replica; publish with Nats-Msg-Id and " +
				"Nats-Expected-Last-Subject-Sequence",
			pools: []int{1, 4, 16},
		},
		{
			name: "etcd", make: func() system { return &etcd{members: 1} }, version: module(etcdModule),
			settings: "one member, defaults (every entry is synced before it is applied), 8 GiB quota; one Txn, one " +
				"round trip",
			pools: []int{1, 4, 16},
		},
		{
			name: "restate", make: func() system { return new(restate) },
			version:  program("restate-server", "make bench-peers gets it from npm"),
			settings: "one node, defaults", pools: []int{8, 64, 256}, keyed: true, unnumbered: true,
		},
		{
			name: "seqledger-3", make: func() system { return &wire{nodes: 3} }, version: module(""), named: true,
			settings:  "three nodes as processes of this machine, defaults; otherwise as seqledger",
			pipelines: true, keyed: true,
		},
		{
			name: "etcd-3", make: func() system { return &etcd{members: 3} }, version: module(etcdModule), named: true,
			settings: "three members as processes of this machine, callers spread over them; otherwise as etcd",
			pools:    []int{1, 4, 16},
		},
	}
}

const etcdModule = "go.etcd.io/etcd/server/v3"

// connections returns the pools to try: those not larger than the callers, or as many as there are callers. Pipelined,
// few connections are the point.
func (k *kind) connections(callers int, pipelined bool) (fit []int) {
	if len(k.pools) == 0 {
		return []int{1}
	}
	if pipelined {
		return []int{1, 2, 4, 8}
	}
	for _, size := range k.pools {
		if size < callers {
			fit = append(fit, size)
		}
	}
	if callers <= k.pools[len(k.pools)-1] {
		fit = append(fit, callers)
	}
	return fit
}

// module returns the version of a module in this program; "" asks for seqledger itself.
func module(path string) func() (string, error) {
	return func() (string, error) {
		if path == "" {
			return "this source tree", nil
		}
		if info, ok := debug.ReadBuildInfo(); ok {
			for _, dependency := range info.Deps {
				if dependency.Path == path {
					return path + " " + dependency.Version, nil
				}
			}
		}
		return path, nil
	}
}

// program returns the first words of what an installed program says of its version.
func program(name, otherwise string) func() (string, error) {
	return func() (string, error) {
		if process.Find(name, "") == "" {
			return "", fmt.Errorf("not found; %s", otherwise)
		}
		out, err := exec.Command(name, "--version").Output()
		words := strings.Fields(string(out))
		return strings.Join(words[:min(3, len(words))], " "), err
	}
}

// launchSelf launches this program as the server of a system, and returns the address that it tells.
func launchSelf(ctx context.Context, dir string, arguments ...string) (*process.Process, string, error) {
	command := process.Self(append(arguments, "-dir", dir)...)
	return process.LaunchServer(ctx, command, dir+".log")
}

// launchOther launches another program as a user, which may be nil, and waits until it answers.
func launchOther(
	ctx context.Context, command *exec.Cmd, user *syscall.Credential, dir string, answers func(context.Context) error,
) ([]*process.Process, error) {
	p, err := process.Launch(command, dir+".log", user)
	if err != nil {
		return nil, err
	}
	p.Signal = os.Interrupt // PostgreSQL does not wait for its clients then
	return []*process.Process{p}, p.Ready(ctx, answers)
}
