package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/seqledger/seqledger/internal/load"
)

// namespaces is a network whose nodes are in network namespaces of their own, with a router between them and the
// clients. What is cut is dropped by the router without a word: connections live on and say nothing, as when a cable is
// out, and TCP repeats what was lost when it is in again.
type namespaces struct {
	router string // its namespace; those of nodes are this and their numbers
	prefix string // the first two bytes of all addresses
}

// The third byte of the nodes' addresses starts at 1, and the clients' is outside their network, so that a cut between
// nodes does not affect clients.
const (
	nodesAt   = "%s.0.0/17"
	routerAt  = "%s.%d.1"
	nodeAt    = "%s.%d.2"
	clientsAt = 128
)

// newNamespaces makes the router, and the clients' way to it. why says why there is none, because that takes Linux,
// root and the program ip.
func newNamespaces(ctx context.Context) (n *namespaces, why string) {
	if os.Geteuid() != 0 {
		return nil, "they take root"
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, err.Error()
	}
	n = new(namespaces)
	if err := n.addRouter(ctx); err != nil {
		return nil, err.Error()
	}
	err := n.ip(ctx,
		"netns exec "+n.router+" tee /proc/sys/net/ipv4/ip_forward",
		"link add "+n.router+" type veth peer name clients netns "+n.router,
		"addr add "+fmt.Sprintf(nodeAt, n.prefix, clientsAt)+"/30 dev "+n.router,
		"link set "+n.router+" up",
		"-n "+n.router+" addr add "+fmt.Sprintf(routerAt, n.prefix, clientsAt)+"/30 dev clients",
		"-n "+n.router+" link set clients up",
		"route add "+fmt.Sprintf(nodesAt, n.prefix)+" via "+fmt.Sprintf(routerAt, n.prefix, clientsAt),
	)
	if err != nil {
		return nil, errors.Join(err, n.close(nil)).Error()
	}
	return n, ""
}

// addRouter makes the router's namespace, whose name is not in use: so two runs at once do not meet.
func (n *namespaces) addRouter(ctx context.Context) (err error) {
	const least, most = 64, 191
	for i := least; i <= most; i++ {
		n.router, n.prefix = fmt.Sprint("chaos", i), fmt.Sprint("10.", i)
		if err = n.ip(ctx, "netns add "+n.router); err == nil {
			return nil
		}
	}
	return err
}

// ip runs the program ip with each of the commands, whose input is a 1, until one fails.
func (n *namespaces) ip(ctx context.Context, commands ...string) error {
	for _, c := range commands {
		ip := exec.CommandContext(ctx, "ip", strings.Fields(c)...)
		ip.Stdin = strings.NewReader("1")
		if out, err := ip.CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", c, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

func (n *namespaces) of(d *node) string { return fmt.Sprint(n.router, "-", d.number) }

func (n *namespaces) address(d *node) string { return fmt.Sprintf(nodeAt, n.prefix, d.number) }

// add makes a node's namespace, and gives it its addresses.
func (n *namespaces) add(ctx context.Context, d *node) error {
	const clients, peers = ":7450", ":7451"
	at := n.address(d)
	d.client, d.peer = at+clients, at+peers
	own, router, link := n.of(d), fmt.Sprintf(routerAt, n.prefix, d.number), fmt.Sprint("node", d.number)
	return n.ip(ctx,
		"netns add "+own,
		"-n "+own+" link set lo up",
		"-n "+n.router+" link add "+link+" type veth peer name wire netns "+own,
		"-n "+n.router+" addr add "+router+"/30 dev "+link,
		"-n "+n.router+" link set "+link+" up",
		"-n "+own+" addr add "+at+"/30 dev wire",
		"-n "+own+" link set wire up",
		"-n "+own+" route add default via "+router,
	)
}

// command runs the command of a server in a node's namespace, without TLS, because the network is private.
func (n *namespaces) command(d *node, server *exec.Cmd) *exec.Cmd {
	return exec.Command("ip", slices.Concat([]string{"netns", "exec", n.of(d)}, server.Args, []string{
		"--insecure", "--peer-insecure",
	})...)
}

// networkFaults are what the router can do.
var networkFaults = []fault{
	{"cut a node off", 3, (*adversary).any, part((*namespaces).cutOff)},
	{"a node hears nothing", 2, (*adversary).any, part((*namespaces).deaf)},
	{"a node is unplugged", 2, (*adversary).any, part((*namespaces).unplugged)},
	{"the leader is unplugged", 2, (*adversary).leader, part((*namespaces).unplugged)},
}

// part lets the router drop something of a node for a while.
func part(of func(*namespaces, *node) []route) func(*adversary, context.Context, *node) error {
	return func(a *adversary, ctx context.Context, d *node) error {
		routes := of(a.c.network, d)
		err := a.c.network.drop(ctx, routes, true)
		load.Pause(ctx, a.between(time.Second, 4*time.Second))
		return errors.Join(err, a.c.network.drop(ctx, routes, false))
	}
}

// route is where packets come from, and where they go to.
type route struct{ from, to string }

// cutOff is all between a node and the others.
func (n *namespaces) cutOff(d *node) []route {
	return append(n.deaf(d), route{n.address(d), fmt.Sprintf(nodesAt, n.prefix)})
}

// deaf is what the others send to a node.
func (n *namespaces) deaf(d *node) []route {
	return []route{{fmt.Sprintf(nodesAt, n.prefix), n.address(d)}}
}

// unplugged is all that goes to a node, or comes from it, clients' too.
func (n *namespaces) unplugged(d *node) []route {
	return []route{{"all", n.address(d)}, {n.address(d), "all"}}
}

// drop lets the router drop what takes some routes, or carry it again.
func (n *namespaces) drop(ctx context.Context, routes []route, drop bool) (err error) {
	do := "add"
	if !drop {
		do = "del"
	}
	for _, r := range routes {
		rule := fmt.Sprintf("-n %s rule %s from %s to %s blackhole", n.router, do, r.from, r.to)
		err = errors.Join(err, n.ip(ctx, rule))
	}
	return err
}

// close removes the namespaces, whose processes must have ended, and with them what was between them.
func (n *namespaces) close(nodes []*node) error {
	err := n.ip(context.Background(), "netns del "+n.router)
	for _, d := range nodes {
		err = errors.Join(err, n.ip(context.Background(), "netns del "+n.of(d)))
	}
	return err
}
