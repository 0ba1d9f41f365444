package machine

// Table names one ordered key space of the state. A table never
// changes its number, because that is part of the format on disk.
type Table uint8

// The tables of the state. ledger/FORMAT.md gives the keys and values.
const (
	TableMeta          Table = iota // "head", and the marks of the history: see retention.go
	TableStreams                    // stream key → stream record
	TableExpiry                     // kind, time, key → nothing
	TableEntities                   // scope, entity key → entity record
	TableRelationships              // scope, resource, relation, subject → version
	TableBlocks                     // last ledger index of a log entry → its blocks
	_                               // up to state format 3 an index of heights
	TableScopes                     // scope → head of its chain
	TableOrganizations              // organization → number of streams
	TableKeyed                      // scope, principal, namespace, key hash → keyed record
	TableAttachments                // ledger index → a long response or checkpoint
	TablePrincipals                 // scope, principal → number of keyed records
	TableCarried                    // version, place → a value that blocks no longer have
	TableCount         = iota
)

// FirstLocalTable is the first of the tables that are a matter of one node. No decision and no
// digest depends on which node has what in them.
const FirstLocalTable = TableCarried

// InStateFile reports whether a table is one of the state file.
func (t Table) InStateFile() bool { return t < TableCount && t != TableBlocks && t != TableBlocks+1 }

// Reader reads the state. Slices handed out are valid until the call that
// produced the Reader returns, or the next Put or Delete, whichever is first;
// they must not be changed.
type Reader interface {
	// Get returns the value of key, or nil when it is absent. A present value
	// is never nil, though it may be empty.
	Get(table Table, key []byte) ([]byte, error)
	// Ascend calls visit for the keys ≥ from in ascending byte order until
	// visit returns false. Visit must not change the table.
	Ascend(table Table, from []byte, visit func(key, value []byte) bool) error
}

// Tx reads and changes the state. An error means that the storage failed: the state is then unusable and the node must
// stop. Put and Delete keep no reference to their arguments.
type Tx interface {
	Reader
	Put(table Table, key, value []byte) error
	Delete(table Table, key []byte) error
}
