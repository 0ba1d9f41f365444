// The operations of a write, and their encoding, which happens once, when a write is submitted.

import { create, fromBinary, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { timestampFromDate, TimestampSchema } from "@bufbuild/protobuf/wkt";
import { type WriteRequest, WriteRequestSchema } from "./gen/seqledger/v1/ledger_pb.js";
import {
  type ConditionSchema,
  type Operation as OperationMessage,
  OperationSchema,
} from "./gen/seqledger/v1/types_pb.js";

/** Operation is one operation of a write. Make one with append, setEntity and the other functions. */
export type Operation = OperationMessage;

/** A value is bytes, or text that is encoded as UTF-8. */
export type Value = Uint8Array | string;

/** Condition must hold for the entity of an operation; otherwise the whole write is refused. */
export type Condition =
  | { notExists: true }
  | { mustExist: true }
  | { version: bigint }
  | { valueEquals: Value };

/** SetOptions are options of setEntity. */
export interface SetOptions {
  condition?: Condition;
  /** The entity is absent from this ledger time on. A set without expiresAt clears an earlier one. */
  expiresAt?: Date;
}

/** append returns an operation that appends a payload of at most 1 MiB. */
export function append(payload: Value): Operation {
  return create(OperationSchema, { operation: { case: "append", value: { payload: bytesOf(payload) } } });
}

/** setEntity returns an operation that creates or replaces an entity; a value has at most 1 MiB. */
export function setEntity(key: string, value: Value, options: SetOptions = {}): Operation {
  const expiresAt =
    options.expiresAt === undefined ? undefined : create(TimestampSchema, timestampFromDate(options.expiresAt));
  return create(OperationSchema, {
    operation: {
      case: "setEntity",
      value: { key: text(key), value: bytesOf(value), condition: conditionOf(options.condition), expiresAt },
    },
  });
}

/** deleteEntity returns an operation that removes an entity, which may be absent. */
export function deleteEntity(key: string, condition?: Condition): Operation {
  return create(OperationSchema, {
    operation: { case: "deleteEntity", value: { key: text(key), condition: conditionOf(condition) } },
  });
}

/** relate returns an operation that creates a relationship, which may already exist. */
export function relate(resource: string, relation: string, subject: string): Operation {
  return create(OperationSchema, {
    operation: {
      case: "createRelationship",
      value: { resource: text(resource), relation: text(relation), subject: text(subject) },
    },
  });
}

/** unrelate returns an operation that deletes a relationship, which may be absent. */
export function unrelate(resource: string, relation: string, subject: string): Operation {
  return create(OperationSchema, {
    operation: {
      case: "deleteRelationship",
      value: { resource: text(resource), relation: text(relation), subject: text(subject) },
    },
  });
}

function conditionOf(condition: Condition | undefined): MessageInitShape<typeof ConditionSchema> | undefined {
  if (condition === undefined) return undefined;
  if (Object.keys(condition).length !== 1) {
    throw new TypeError("a condition has exactly one of notExists, mustExist, version and valueEquals");
  }
  if ("notExists" in condition) return { condition: { case: "notExists", value: condition.notExists } };
  if ("mustExist" in condition) return { condition: { case: "mustExist", value: condition.mustExist } };
  if ("version" in condition) return { condition: { case: "version", value: condition.version } };
  return { condition: { case: "valueEquals", value: bytesOf(condition.valueEquals) } };
}

const utf8 = new TextEncoder();

/** bytesOf returns a value's bytes. They are copied when the write is submitted. */
export function bytesOf(value: Value): Uint8Array {
  return typeof value === "string" ? utf8.encode(text(value)) : value;
}

/** text refuses what UTF-8 cannot represent, because encoding would change it. */
function text(s: string): string {
  if (/[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/.test(s)) {
    throw new TypeError(`${JSON.stringify(s)} is not text: it has half of a surrogate pair`);
  }
  return s;
}

const maxOperations = 1000;
// The ledger accepts 4 MiB of operations; the rest allows for the protobuf encoding, which the
// ledger does not count.
const maxWriteBytes = (4 << 20) + (64 << 10);

/** encodeOperations returns a WriteRequest that contains only the operations. */
export function encodeOperations(operations: readonly Operation[]): Uint8Array {
  if (operations.length === 0 || operations.length > maxOperations) {
    throw new RangeError(`a write has 1 to ${maxOperations} operations, not ${operations.length}`);
  }
  operations.forEach((o, i) => {
    if (o?.operation?.case === undefined) throw new TypeError(`operation ${i} is empty`);
  });
  const encoded = toBinary(WriteRequestSchema, create(WriteRequestSchema, { operations: [...operations] }));
  if (encoded.length > maxWriteBytes) {
    throw new RangeError(`the write has ${encoded.length} bytes, at most ${maxWriteBytes} are allowed`);
  }
  return encoded;
}

/** decodeOperations is the inverse of encodeOperations. It refuses any other input. */
export function decodeOperations(encoded: Uint8Array): Operation[] {
  const request: WriteRequest = fromBinary(WriteRequestSchema, encoded);
  const rest = create(WriteRequestSchema, { ...request, operations: [] });
  if (request.operations.length === 0 || toBinary(WriteRequestSchema, rest).length !== 0) {
    throw new Error("a journalled write is not operations alone");
  }
  return request.operations;
}
