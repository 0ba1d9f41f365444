package servertest

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seqledger/seqledger/internal/testkit/freeport"
)

// The slots of a cluster of Redis.
const redisSlots = 16384

// Cluster is a cluster of Redis. Its nodes fail over only when a test says so, with Promote.
type Cluster struct {
	URL string // for clients; it has the first two nodes
	// Masters have the slots in equal parts, and Replicas one of them each.
	Masters, Replicas []*Server

	t     testing.TB
	ports map[*Server]string // of the bus
}

// RedisCluster starts a cluster of masters that sync every command, each with a replica.
func RedisCluster(t testing.TB, masters int) *Cluster {
	t.Helper()
	c := &Cluster{t: t, ports: map[*Server]string{}}
	for range masters {
		c.Masters, c.Replicas = append(c.Masters, c.node()), append(c.Replicas, c.node())
	}
	c.URL = "redis-cluster://" + c.Masters[0].Address + "," + c.Masters[1].Address
	for i, master := range c.Masters {
		from, to := i*redisSlots/masters, (i+1)*redisSlots/masters-1
		c.must(master, "CLUSTER", "ADDSLOTSRANGE", from, to)
	}
	nodes := append(c.Masters[:masters:masters], c.Replicas...)
	for i, node := range nodes {
		c.must(node, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
		for _, other := range nodes[:i] { // each pair: they would hear of each other later
			host, port, _ := net.SplitHostPort(other.Address) // our own
			c.must(node, "CLUSTER", "MEET", host, port, c.ports[other])
		}
	}
	for _, node := range nodes {
		c.await(node, "CLUSTER INFO", "cluster_known_nodes:"+strconv.Itoa(len(nodes)))
	}
	for i, replica := range c.Replicas {
		id, _ := c.must(c.Masters[i], "CLUSTER", "MYID").(string)
		c.must(replica, "CLUSTER", "REPLICATE", id)
		c.await(replica, "INFO replication", "master_link_status:up")
	}
	c.agree(nodes)
	for _, node := range nodes { // from now on none is taken for dead by the others, however slow this machine is
		c.must(node, "CONFIG", "SET", "cluster-node-timeout", "600000")
	}
	return c
}

// agree waits until every node knows which are masters, and of which slots, and which are their replicas.
func (c *Cluster) agree(nodes []*Server) {
	c.t.Helper()
	var ids []string
	for _, node := range nodes {
		id, _ := c.must(node, "CLUSTER", "MYID").(string)
		ids = append(ids, id)
	}
	for _, node := range nodes {
		c.await(node, "CLUSTER INFO", "cluster_state:ok")
		for _, id := range ids {
			c.await(node, "CLUSTER SLOTS", id)
		}
	}
}

// node starts a node.
func (c *Cluster) node() *Server {
	c.t.Helper()
	bus, err := freeport.Address()
	if err != nil {
		c.t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(bus) // our own
	// Nodes that are asked often learn of each other soon.
	s := Redis(c.t, "--cluster-enabled", "yes", "--cluster-port", port, "--cluster-node-timeout", "3000",
		"--cluster-replica-no-failover", "yes", "--cluster-require-full-coverage", "no")
	c.ports[s] = port
	return s
}

// Of returns the master that has a key, and its replica, as they were at the start.
func (c *Cluster) Of(key string) (master, replica *Server) {
	c.t.Helper()
	slot, _ := c.must(c.Masters[0], "CLUSTER", "KEYSLOT", key).(int64)
	i := 0
	for int(slot) >= (i+1)*redisSlots/len(c.Masters) {
		i++
	}
	return c.Masters[i], c.Replicas[i]
}

// Promote makes a replica, whose master is dead, a master in its place, as an operator does.
func (c *Cluster) Promote(replica *Server) {
	c.t.Helper()
	c.must(replica, "CLUSTER", "FAILOVER", "TAKEOVER")
	c.await(replica, "INFO replication", "role:master")
}

// Move moves the slot of a key, and the keys in it, to another master, as an operator does. meanwhile runs when none of
// the keys has been moved.
func (c *Cluster) Move(key string, to *Server, meanwhile func()) {
	c.t.Helper()
	from, _ := c.Of(key)
	slot := c.must(from, "CLUSTER", "KEYSLOT", key)
	source, target := c.must(from, "CLUSTER", "MYID"), c.must(to, "CLUSTER", "MYID")
	c.must(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", source)
	c.must(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", target)
	meanwhile()
	names, _ := c.must(from, "CLUSTER", "GETKEYSINSLOT", slot, 1000).([]any)
	host, port, _ := net.SplitHostPort(to.Address) // our own
	c.must(from, append([]any{"MIGRATE", host, port, "", 0, 60_000, "KEYS"}, names...)...)
	for _, node := range append([]*Server{to, from}, c.Masters...) {
		c.must(node, "CLUSTER", "SETSLOT", slot, "NODE", target)
	}
}

// must runs a command on a node.
func (c *Cluster) must(node *Server, command ...any) any {
	c.t.Helper()
	client := redis.NewClient(&redis.Options{Addr: node.Address, Protocol: 2})
	defer func() { _ = client.Close() }()
	answer, err := client.Do(c.t.Context(), command...).Result()
	if err != nil {
		c.t.Fatalf("%v: %v", command, err)
	}
	return answer
}

// await waits until a command of a node answers with a text.
func (c *Cluster) await(node *Server, command, want string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	var words []any
	for word := range strings.FieldsSeq(command) {
		words = append(words, word)
	}
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		answer := fmt.Sprint(c.must(node, words...))
		if strings.Contains(answer, want) {
			tick.Stop()
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.t.Fatalf("%s has no %q: %s", command, want, answer)
		}
	}
}
