-- The work of one write. KEYS: the stream's hash, the log.
-- ARGV: sequence, idempotency key, request hash, payload.
-- A receipt has the place of the one 64 writes before, as in seqledger.
local last = tonumber(redis.call('HGET', KEYS[1], 'last') or '0')
local sequence = tonumber(ARGV[1])
local slot = 'r' .. sequence % 64
if sequence == last + 1 then
  local id = redis.call('XADD', KEYS[2], '*', 'p', ARGV[4])
  redis.call('HSET', KEYS[1], 'last', ARGV[1], slot, ARGV[1] .. ' ' .. ARGV[2] .. ARGV[3] .. id)
  return {1, id}
end
if sequence > last then
  return {4, ''}
end
local receipt = redis.call('HGET', KEYS[1], slot)
local want = ARGV[1] .. ' ' .. ARGV[2] .. ARGV[3]
if receipt and string.sub(receipt, 1, #want) == want then
  return {2, string.sub(receipt, #want + 1)}
end
return {3, ''}
