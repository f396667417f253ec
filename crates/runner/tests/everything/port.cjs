// Has the server listen on a free port of this machine alone, and say which.
const net = require("node:net");
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (_port, ...rest) {
  this.once("listening", () => console.log(`port ${this.address().port}`));
  return listen.call(this, 0, "127.0.0.1", ...rest);
};
