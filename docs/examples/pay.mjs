// Books each payment once, however often it is killed and run again:
//
//   node pay.mjs http://127.0.0.1:7450 till-9.json payment-4711 100
//
// It needs Node 18 or later on Linux or macOS, and nothing else. The file is its only memory: one process at a time
// uses it, and it is never put back from a copy.
import { closeSync, existsSync, fsyncSync, openSync, readFileSync, renameSync, writeSync } from 'node:fs'
import { randomBytes, randomUUID } from 'node:crypto'
import { dirname } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

const [server, file, id, amount] = process.argv.slice(2)
const stream = { scope: { organization: 'acme', vault: 'main' }, clientId: 'till-9' }
const memory = existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : { session: '0', done: {} }

// save changes the memory durably: the new file is synced, takes the old one's place, and then the directory is synced.
function save(change) {
  const sync = (path, flags, text) => {
    const f = openSync(path, flags)
    if (text) writeSync(f, text)
    fsyncSync(f)
    closeSync(f)
  }
  sync(file + '.new', 'w', JSON.stringify(Object.assign(memory, change)))
  renameSync(file + '.new', file)
  sync(dirname(file), 'r')
}

// call repeats a request, with the same bytes, until the ledger has decided it. Only a WriteError is a refusal.
async function call(procedure, request, field) {
  const undecided = /^WRITE_ERROR_CODE_(QUEUE_FULL|TOO_MANY_STREAMS|NOT_LEADER|DRAINING|OUTCOME_UNKNOWN)$/
  const repeated = /^(canceled|unknown|deadline_exceeded|resource_exhausted|aborted|internal|unavailable)$/
  const init = { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(request) }
  for (let pause = 50; ; pause = Math.min(2 * pause, 5000)) {
    const response = await fetch(`${server}/seqledger.v1.${procedure}`, init).catch(() => null)
    const answer = await response?.json().catch(() => null) // null: broken off, or from something between
    if (response?.ok && answer?.[field]) return answer[field]
    const refusal = answer?.details?.find((d) => d.type === 'seqledger.v1.WriteError')?.debug
    if (refusal && !undecided.test(refusal.code)) return { refusal: refusal.code }
    if (!refusal && answer?.code && !repeated.test(answer.code)) throw new Error(`${answer.code}: ${answer.message}`)
    await sleep(pause * (0.5 + Math.random() / 2))
  }
}

// openSession saves the attempt before the call, and the session before anything is sent under it.
async function openSession() {
  if (!memory.attempt) save({ attempt: randomBytes(16).toString('base64') })
  const request = { ...stream, attemptId: memory.attempt, expectedSession: memory.session }
  const state = await call('LedgerService/OpenSession', request, 'state')
  if (state.refusal?.endsWith('SESSION_EXPIRED') && !memory.write && memory.session !== '0') {
    save({ session: '0', attempt: undefined }) // evicted with nothing open: begin again
    return openSession()
  }
  if (state.refusal) throw new Error(`${state.refusal}: look at the stream before anything is sent again`)
  save({ session: state.session, attempt: undefined })
  return BigInt(state.lastCommittedSequence ?? 0)
}

// settle brings the open write to its end. A refusal is final only when no copy can be under way. So after a refusal
// it opens a session, which no older copy survives, and looks whether one was committed before.
async function settle() {
  const { name, request } = memory.write
  const send = () => call('LedgerService/Write', { ...stream, session: memory.session, ...request }, 'receipt')
  let receipt = await send()
  if (receipt.refusal && (await openSession()) >= BigInt(request.sequence)) {
    receipt = await send() // committed, by this file's sessions alone
    if (receipt.refusal?.endsWith('ALREADY_COMMITTED')) receipt = { ...request, txId: 'receipt no longer kept' }
  }
  if (receipt.refusal) {
    save({ write: undefined })
    throw new Error(`${name} is not booked: ${receipt.refusal}`)
  }
  if (receipt.sequence !== request.sequence) throw new Error(`${name} has receipt ${receipt.sequence}: stop and look`)
  save({ write: undefined, done: { ...memory.done, [name]: receipt.txId } })
  return BigInt(request.sequence)
}

const { ledgerId } = await call('AdminService/GetStatus', {}, 'status')
if (memory.ledger && memory.ledger !== ledgerId) throw new Error('another ledger, or a restored one: look first')
save({ ledger: ledgerId })
let last = await openSession()
if (memory.write) last = await settle() // what an earlier run left behind
if (!memory.done[id]) {
  const operations = [{ append: { payload: Buffer.from(`${id} ${amount}`).toString('base64') } }]
  save({ write: { name: id, request: { sequence: String(last + 1n), idempotencyKey: randomUUID(), operations } } })
  await settle()
}
console.log(id, memory.done[id])
