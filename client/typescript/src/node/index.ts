// What needs Node: journals in files.

export { fileJournal } from "./filejournal.js";
