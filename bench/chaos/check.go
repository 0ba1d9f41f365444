package chaos

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/admin"
	"github.com/seqledger/seqledger/internal/load"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// awaitVoters waits until all nodes have a vote: without those that have none yet, the others are no majority.
func (c *cluster) awaitVoters(ctx context.Context) error {
	_, err := harness.AwaitVoters(ctx, c.servers(), len(c.nodes))
	return err
}

// errHandedOver repeats the question: the leader has handed over and can be removed now.
var errHandedOver = errors.New("the leader has handed over")

// retire takes a node out of the cluster. If it leads, it hands over first.
func (c *cluster) retire(ctx context.Context, d *node) error {
	return c.ask(ctx, c.servers(), func(ctx context.Context, conn *client.Client) error {
		cluster, err := admin.GetCluster(ctx, conn)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(cluster.Members, func(m *seqledgerv1.ClusterMember) bool {
			return m.PeerAddress == d.peer
		})
		if i < 0 {
			return nil // an attempt before this one did it
		}
		id := cluster.Members[i].Id
		if id != cluster.Leader {
			_, err = admin.ChangeCluster(ctx, conn, &seqledgerv1.ChangeClusterRequest{
				Change: &seqledgerv1.ChangeClusterRequest_Remove{Remove: id},
			})
			return err
		}
		_, err = admin.ChangeCluster(ctx, conn, &seqledgerv1.ChangeClusterRequest{
			Change: &seqledgerv1.ChangeClusterRequest_Transfer{},
		})
		return errors.Join(err, errHandedOver)
	})
}

// ask repeats a question until it is answered, for some time.
func (c *cluster) ask(ctx context.Context, servers string, question func(context.Context, *client.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	conn, err := client.New(client.Options{Server: servers})
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // It has its answer.
	for {
		attempt, stop := context.WithTimeout(ctx, 2*time.Second)
		err := question(attempt, conn)
		stop()
		if err == nil || ctx.Err() != nil {
			return err
		}
		load.Pause(ctx, 50*time.Millisecond)
	}
}

// findings is the judgment.
type findings struct {
	transactions, duplicates, lost, never int
	linearizable                          porcupine.CheckResult
	digests                               []string
	problems                              []error
}

func (f *findings) err() error {
	errs := slices.Clone(f.problems)
	if f.duplicates+f.lost+f.never > 0 {
		errs = append(errs, fmt.Errorf("%d duplicates, %d lost, %d that nobody meant", f.duplicates, f.lost, f.never))
	}
	if f.linearizable != porcupine.Ok {
		errs = append(errs, fmt.Errorf("the registers are not linearizable: %s", f.linearizable))
	}
	for _, d := range f.digests {
		if d != f.digests[0] {
			errs = append(errs, fmt.Errorf("the nodes differ: %v", f.digests))
			break
		}
	}
	return errors.Join(errs...)
}

// judge compares what the clients saw with what each node has. pictures is where Porcupine draws what it finds.
func (l *workload) judge(ctx context.Context, pictures string) *findings {
	f := &findings{problems: l.problems}
	f.linearizable = l.checkRegisters(f, pictures)
	for _, d := range l.c.nodes {
		err := l.c.ask(ctx, d.client, func(ctx context.Context, conn *client.Client) error {
			// A read that has confirmed itself with a majority: the node is as far as all acknowledgements.
			status, err := conn.Status(ctx)
			if err == nil {
				f.digests = append(f.digests, fmt.Sprint(status.Index, " ", status.Digest))
			}
			return err
		})
		if err != nil {
			f.problems = append(f.problems, fmt.Errorf("node %d: %w", d.number, err))
		}
	}
	if err := l.audit(ctx, f); err != nil {
		f.problems = append(f.problems, err)
	}
	for _, d := range l.c.nodes {
		if err := d.stop(); err != nil {
			f.problems = append(f.problems, fmt.Errorf("node %d: stop: %w", d.number, err))
		}
		if out, err := exec.CommandContext(ctx, l.c.binary, "verify", "--data", d.dir).CombinedOutput(); err != nil {
			f.problems = append(f.problems, fmt.Errorf("node %d: verify: %w\n%s", d.number, err, out))
		}
	}
	return f
}

// audit counts each payload in the blocks of one node.
func (l *workload) audit(ctx context.Context, f *findings) error {
	conn, err := client.New(client.Options{Server: l.c.nodes[len(l.c.nodes)-1].client})
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // It only reads.
	last := uint64(0)
	for b, err := range conn.ListBlocks(ctx, &seqledgerv1.ListBlocksRequest{Scope: scope, PageSize: 1000}) {
		if err != nil {
			return err
		}
		last = max(last, b.Header.Height)
	}
	found := map[string]int{}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for b, err := range conn.Watch(ctx, &seqledgerv1.WatchRequest{
		Scope: scope, FromHeight: 1, Content: seqledgerv1.BlockContent_BLOCK_CONTENT_PARTS,
	}) {
		if err != nil {
			return err
		}
		for _, tx := range b.Transactions {
			for _, operation := range tx.Operations {
				if payload := operation.GetAppend().GetPayload(); payload != nil {
					found[string(payload)]++
					f.transactions++
				}
			}
		}
		if b.Header.Height >= last {
			break
		}
	}
	for payload, n := range found {
		f.duplicates += n - 1
		if !l.attempted[payload] {
			f.never++
		}
	}
	for payload := range l.acked {
		if found[payload] == 0 {
			f.lost++
		}
	}
	return nil
}

// register is what a key should do.
var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, o := range history {
			key := o.Input.(input).key //nolint:forcetypeassert // It is what load records.
			byKey[key] = append(byKey[key], o)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, in, out any) (bool, any) {
		i, o := in.(input), out.(output) //nolint:forcetypeassert // It is what load records.
		switch {
		case i.kind == kindRead:
			return o.value == state, state
		case i.kind == kindPut:
			return true, i.new
		case o.done:
			return state == i.old, i.new
		default:
			return state != i.old, state
		}
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v: %+v", in, out) },
}

func (l *workload) checkRegisters(f *findings, pictures string) porcupine.CheckResult {
	const patience = 5 * time.Minute
	result, info := porcupine.CheckOperationsVerbose(register, l.operations, patience)
	if result != porcupine.Ok && pictures != "" {
		if err := porcupine.VisualizePath(register, info, pictures); err != nil {
			f.problems = append(f.problems, err)
		}
	}
	return result
}
