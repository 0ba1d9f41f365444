// Sends a request with a key until its outcome is known, in a browser (and in Node, Deno and Bun, with a storage of your
// own). The key and the body are stored before they are sent, so that a reload of the page repeats the same request.
//
//   const answer = await once('/charges', { amount: 5 }, { name: 'charge-4711', headers: { authorization } })
//
// name is the intention: two calls with one name are one request. The result is { response, problem, done }:
//   response  the service's response, the first one or its replay; call done() when the page has shown it
//   problem   a refusal with code and action (docs/codes.md). With the action reconcile nobody knows whether it happened,
//             and the name stays taken: ask, do not call with another name. After the others call done()
// It throws when signal ends, after the last attempt, and if the service ignores the key. Call it again to go on.

export async function once(url, body, options) {
  const { name, headers = {}, storage = globalThis.localStorage, signal, attempts = 20, pause = 250 } = options
  const slot = `once ${name}`
  let saved = JSON.parse(storage.getItem(slot) ?? 'null')
  if (!saved) {
    saved = { key: crypto.randomUUID(), body: JSON.stringify(body) }
    storage.setItem(slot, JSON.stringify(saved))
  }
  const done = () => storage.removeItem(slot)
  const request = {
    method: 'POST', signal, body: saved.body,
    headers: { 'content-type': 'application/json', ...headers, 'idempotency-key': `"${saved.key}"` },
  }
  for (let attempt = 1; ; attempt++) {
    const response = await fetch(url, request).catch((error) => {
      if (signal?.aborted || attempt === attempts) throw error
      return null // no answer: it may have been executed, so the same request goes again
    })
    if (response?.headers.get('idempotent-ignored')) throw new Error(`${url} ignores the key: a repeat would run again`)
    const problem = response && (await refusal(response))
    const again = !response || problem?.retryable || (!problem && response.status >= 500)
    if (!again) return { response, problem, done }
    if (attempt === attempts) throw new Error(`${name}: no outcome after ${attempts} attempts; call again to go on`)
    const wait = Number(response?.headers.get('retry-after')) * 1000 || 0
    await sleep(Math.max(wait, Math.min(pause * 2 ** attempt, 30_000)) * (1 + Math.random() / 4), signal)
  }
}

// refusal returns the problem document of a response that is one of the gateway or the middleware.
async function refusal(response) {
  if (!response.headers.get('content-type')?.startsWith('application/problem+json')) return null
  const problem = await response.clone().json().catch(() => null)
  return problem?.code && problem.action ? problem : null
}

function sleep(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds)
    signal?.addEventListener('abort', () => (clearTimeout(timer), reject(signal.reason)), { once: true })
  })
}
