// A link on a page of another site comes without the app's cookie. This script, which only a browser with the cookie gets,
// opens the app from the app's own site; the query stays in the address.
location.replace(`/${location.hash}`);
