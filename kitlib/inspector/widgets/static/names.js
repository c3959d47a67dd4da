// Short names that stay different: every uid cut to one length at which no two are equal, as in kitlib.inspector.names.

export const uidOf = (name) => name.split("_", 1)[0]; // as kitlib.keys.uid_of

export class ShortNames {
  // limits: {least, worth}: never shorter than `least` characters; uids up to `worth` characters are left whole.
  constructor(names, limits) {
    this.limits = limits;
    this.start(names);
  }

  start(names) {
    const uids = [...new Set(names.map(uidOf))].sort();
    let length = this.limits.least;
    let longest = 0;
    uids.forEach((uid, i) => {
      longest = Math.max(longest, uid.length);
      if (i) length = Math.max(length, common(uids[i - 1], uid) + 1);
    });
    this.length = longest > this.limits.worth && length < longest ? length : Infinity;
    this.taken = new Map(uids.map((uid) => [uid.slice(0, this.length), uid])); // prefix -> the only uid that has it
    this.longest = 0; // characters of the longest short name
    for (const name of names) this.longest = Math.max(this.longest, this.of(name).length);
  }

  // More names: a prefix that is taken by another uid makes all of them longer; names so far left whole may be cut now.
  add(added, all) {
    for (const name of added) {
      const uid = uidOf(name);
      const owner = this.taken.get(uid.slice(0, this.length));
      const mayBeCut = this.length === Infinity && uid.length > this.limits.worth;
      if (owner !== uid && (owner !== undefined || mayBeCut)) return this.start(all);
      this.taken.set(uid.slice(0, this.length), uid);
      this.longest = Math.max(this.longest, this.of(name).length);
    }
  }

  of(name) {
    if (this.length === Infinity) return name;
    const uid = uidOf(name);
    return uid.slice(0, this.length) + name.slice(uid.length);
  }
}

function common(a, b) {
  let length = 0;
  while (length < a.length && a[length] === b[length]) length++;
  return length;
}
