// Which page the part of the URL behind the # means.

/** Place is a page's path and its argument. problem says why the argument cannot be read. */
export interface Place {
  path: string;
  argument: string;
  problem?: string;
}

/** placeOf reads "#/path/argument". A person may have typed it. */
export function placeOf(hash: string): Place {
  const [path = "", ...rest] = hash.replace(/^#\/?/, "").split("/");
  const written = rest.join("/");
  try {
    return { path, argument: decodeURIComponent(written) };
  } catch {
    return { path, argument: "", problem: `the address ends in ${JSON.stringify(written)}, which is not well-formed` };
  }
}
