package examples_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/op"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// The example tasks is a task queue whose tasks are keyed writes. A task is added once per key, however often its
// producer retries the call, and a worker follows the ledger:
//
//	tasks add --key invoice-7 mail '{"to":"a@example.com"}'
//	tasks work
//
// The first add reports that the task was created, every later one that it exists, with the same id. The same key with
// another task is a conflict, and adds nothing.
//
// A key is unique within the namespace of the write: all tasks of one type (the default), all tasks of one queue
// (--unique queue), or a name that the producer chooses (--unique customer-9).
const tasksUsage = `usage: tasks addTask --key KEY [--queue QUEUE] [--unique type|queue|NAME] TYPE PAYLOAD
       tasks workTasks [--queue QUEUE]
Both take --server ADDRESS`

// keyTTL is how long a key is kept. A producer that retries a call later adds another task.
const keyTTL = 30 * 24 * time.Hour

// exitConflict is the exit code of an add whose key belongs to another task.
const exitConflict = 3

func tasksMain() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := runTasks(ctx, os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, errConflict):
		fmt.Fprintln(os.Stderr, "tasks:", err)
		os.Exit(exitConflict)
	case err != nil && ctx.Err() == nil:
		fmt.Fprintln(os.Stderr, "tasks:", err)
		os.Exit(1)
	}
}

func runTasks(ctx context.Context, args []string, out io.Writer) (err error) {
	if len(args) == 0 || args[0] != "add" && args[0] != "work" {
		return errors.New(tasksUsage)
	}
	flags := flag.NewFlagSet("tasks", flag.ContinueOnError)
	server := flags.String("server", "127.0.0.1:7450", "address of the ledger")
	queue := flags.String("queue", "default", "name of the queue")
	key := flags.String("key", "", "what tells this task from all others")
	unique := flags.String("unique", "type", "what the key is unique among: type, queue, or a name")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	c, err := client.New(client.Options{Server: *server})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if args[0] == "work" {
		return workTasks(ctx, c, *queue, out)
	}
	if flags.NArg() != 2 || *key == "" {
		return errors.New(tasksUsage)
	}
	return addTask(ctx, c, *unique, *key, task{*queue, flags.Arg(0), flags.Arg(1)}, out)
}

// task is what the ledger stores for a task. All of it is part of the request that a key belongs to, so that a key
// never returns a task of another type or of another queue.
type task struct {
	Queue   string `json:"queue"`
	Type    string `json:"type"`
	Payload string `json:"payload"`
}

// tasksScope is the scope of all queues.
func tasksScope() *seqledgerv1.Scope { return &seqledgerv1.Scope{Organization: "tasks"} }

// taskNamespace returns the namespace in which a key is unique. The prefixes keep a custom name from colliding with a
// type or a queue.
func taskNamespace(unique string, t task) string {
	switch unique {
	case "type":
		return "type/" + t.Type
	case "queue":
		return "queue/" + t.Queue
	}
	return "custom/" + unique
}

var errConflict = errors.New("the key was already used for another task; nothing was added")

// added is the output of add.
type added struct {
	ID     string `json:"id"`     // of the transaction, and so of the task
	Status string `json:"status"` // created or existing
}

// addTask adds a task once.
func addTask(ctx context.Context, c *client.Client, unique, key string, t task, out io.Writer) error {
	payload, err := json.Marshal(t)
	if err != nil {
		return err
	}
	request := &seqledgerv1.WriteRequest{
		Scope: tasksScope(), Namespace: taskNamespace(unique, t), IdempotencyKey: key, Ttl: durationpb.New(keyTTL),
		Operations: []*seqledgerv1.Operation{op.Append(payload)},
	}
	var receipt *seqledgerv1.Receipt
	for {
		receipt, err = c.Write(ctx, request)
		if !errors.Is(err, failure.ErrOutcomeUnknown) || ctx.Err() != nil {
			break
		}
		// The answer was lost: the same request finds out whether the task was added.
	}
	switch {
	case failure.CodeOf(err) == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_IDEMPOTENCY_KEY_REUSED:
		return errConflict
	case err != nil:
		return err
	}
	answer := added{receipt.GetTxId(), "created"}
	if receipt.GetReplayed() {
		answer.Status = "existing"
	}
	return json.NewEncoder(out).Encode(answer)
}

// workTasks prints the tasks of a queue, from the first one on. A real worker stores the height it has processed, and
// makes its handling of a task safe to repeat, with the task's id as the key.
func workTasks(ctx context.Context, c *client.Client, queue string, out io.Writer) error {
	for block, err := range c.Watch(ctx, &seqledgerv1.WatchRequest{Scope: tasksScope()}) {
		if err != nil {
			return err
		}
		for _, tx := range block.GetTransactions() {
			for _, operation := range tx.GetOperations() {
				var t task
				if err := json.Unmarshal(operation.GetAppend().GetPayload(), &t); err != nil || t.Queue != queue {
					continue // of another queue, or of another program
				}
				line := struct {
					ID string `json:"id"`
					task
				}{tx.GetTxId(), t}
				if err := json.NewEncoder(out).Encode(line); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
