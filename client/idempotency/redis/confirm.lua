-- Writes the version of a record once more if it is the given one, so that a WAIT behind it is about all that was written
-- before. Returns 1 then, and 0 if the version is another one.
if redis.call('HGET', KEYS[1], 'version') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'version', ARGV[1])
return 1
