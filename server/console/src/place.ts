// Which page the part of the URL after the # means.

/** Place is a page's path and its argument. problem says why the argument cannot be parsed. */
export interface Place {
  path: string;
  argument: string;
  problem?: string;
}

/** placeOf parses "#/path/argument". It may have been typed by hand. */
export function placeOf(hash: string): Place {
  const [path = "", ...rest] = hash.replace(/^#\/?/, "").split("/");
  const written = rest.join("/");
  try {
    return { path, argument: decodeURIComponent(written) };
  } catch {
    return { path, argument: "", problem: `the address ends in ${JSON.stringify(written)}, which is not well-formed` };
  }
}
