package redis

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// connections checks every new connection of a client, and lets the client leave a server that no longer serves the
// store. An address may lead to another server than at the start: after a restart with another configuration, or after
// a failover, when open connections stay at the old master.
type connections struct {
	options Options

	generation atomic.Uint64 // connections of an earlier one are not used again

	mu     sync.Mutex
	warned map[string]bool
}

// guard makes a client's new connections pass the check. It must be called before the client has other users.
func (c *connections) guard(client redis.UniversalClient) {
	switch client := client.(type) {
	case *redis.Client:
		c.guardNode(client, false)
	case *redis.ClusterClient:
		client.OnNewNode(func(node *redis.Client) { c.guardNode(node, true) })
	}
}

func (c *connections) guardNode(node *redis.Client, inCluster bool) {
	node.AddHook(c)
	options := node.Options()
	earlier := options.OnConnect
	options.OnConnect = func(ctx context.Context, conn *redis.Conn) error {
		if earlier != nil {
			if err := earlier(ctx, conn); err != nil {
				return err
			}
		}
		warning, err := checkServer(ctx, conn, inCluster)
		c.warn(ctx, warning)
		return err
	}
}

// warn logs what a server may lose, each warning once.
func (c *connections) warn(ctx context.Context, warning string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if warning == "" || c.warned[warning] {
		return
	}
	if c.warned == nil {
		c.warned = map[string]bool{}
	}
	c.warned[warning] = true
	c.options.Logger.WarnContext(ctx, warning)
}

// DialHook implements redis.Hook.
func (c *connections) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		generation := c.generation.Load()
		conn, err := next(ctx, network, address)
		if err != nil {
			return nil, err
		}
		guarded := &connection{conn, c, generation}
		if system, ok := conn.(syscall.Conn); ok {
			return &systemConnection{guarded, system}, nil
		}
		return guarded, nil
	}
}

// ProcessHook implements redis.Hook.
func (c *connections) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements redis.Hook.
func (c *connections) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// errLeft is the error of a command on a connection that is not used again. The server has the command whole only if it
// was left in the middle of a long one; a script that runs twice finds what it has written, and changes nothing.
var errLeft = errors.New("the connection leads to a server that was left")

// connection is a connection that refuses further commands once its server is left. A command that is under way gets
// its answer.
type connection struct {
	net.Conn

	owner      *connections
	generation uint64
}

func (c *connection) left() bool { return c.generation != c.owner.generation.Load() }

// Write implements net.Conn.
func (c *connection) Write(b []byte) (int, error) {
	if c.left() {
		return 0, errLeft
	}
	return c.Conn.Write(b)
}

// systemConnection is a connection whose state the client looks at before each use: one that is left is closed there.
type systemConnection struct {
	*connection

	system syscall.Conn
}

// SyscallConn implements syscall.Conn.
func (c *systemConnection) SyscallConn() (syscall.RawConn, error) {
	if c.left() {
		return nil, errLeft
	}
	return c.system.SyscallConn()
}

// unable are the errors of a server that has done nothing, and will do nothing until it is another kind of server: it
// became a replica, lost its master or its cluster, or has not yet read its file. An address may lead to a better one.
var unable = []string{"READONLY", "MASTERDOWN", "LOADING", "CLUSTERDOWN"}

// isUnable reports whether a server was unable to run a command.
func isUnable(err error) bool {
	if err == nil {
		return false
	}
	for _, code := range unable {
		// Within the error of a script, before Redis 7.
		if strings.HasPrefix(err.Error(), code+" ") || strings.Contains(err.Error(), ": -"+code+" ") {
			return true
		}
	}
	return false
}

// isBroken reports whether a connection broke: whether the server has run the command is not known.
func isBroken(err error) bool {
	_, isNet := errors.AsType[net.Error](err)
	return isNet || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// attempts is how often a command is tried that a server did not run, or that may be run twice.
const attempts = 3

// do runs a command. It leaves a server that is unable to run it, and tries again where the address leads then. A
// command that may be repeated is also tried again when connections break: those of a pool break together.
func (b *backend) do(ctx context.Context, repeatable bool, run func() error) error {
	left := 0 // the pool closes each connection that was left, so there are at most as many as its size
	for attempt := 1; ; {
		generation := b.connections.generation.Load()
		err := run()
		again := false
		switch {
		case err == nil || errors.Is(err, redis.Nil) || ctx.Err() != nil:
			return err
		case errors.Is(err, errLeft) && left < poolSize(b.client):
			left++
			continue
		case isUnable(err):
			// Once for all commands that meet it, so that new connections are not left.
			b.connections.generation.CompareAndSwap(generation, generation+1)
			again = true
		case isBroken(err):
			again = repeatable
		}
		if !again || attempt == attempts {
			b.findMaster(ctx)
			return err
		}
		attempt++
	}
}

// poolSize returns how many connections to one server a client has at most.
func poolSize(client redis.UniversalClient) int {
	if cluster, ok := client.(*redis.ClusterClient); ok {
		return cluster.Options().PoolSize
	}
	return client.(*redis.Client).Options().PoolSize
}
