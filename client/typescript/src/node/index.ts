// The parts that need Node: journals in files.

export { fileJournal } from "./filejournal.js";
